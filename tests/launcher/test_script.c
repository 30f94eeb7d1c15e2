#include "tests/support/suite.h"

#include "common/embedded.h"
#include "common/mem.h"
#include "launcher/tools/script/script.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* --- site files --------------------------------------------------------------------- */

static const struct {
    const char *text, *error; /* after the file's name; NULL: none */
} sites[] = {
    {"[site]\nscheduler = slurm\n", NULL},
    {"; remark\n[site]\r\nscheduler = slurm ; behind\n\n[partition a b]\nnodes=3\ntime : 2d\n",
     NULL},
    {"[site]\nscheduler = slurm\nrequest =\n    --a={{nodes}}\n    --b\n", NULL},
    {"[site]\nscheduler = slurm\nscratch = /scratch/$USER/${SLURM_JOB_ID}\n", NULL},
    {"", ": [site] must say scheduler = slurm, sge, pbs, lsf or flux"},
    {"nodes = 3\n", ":1:1: a section must come first: [site]"},
    {"[site]\nscheduler = torque\n",
     ":2:13: scheduler: expected slurm, sge, pbs, lsf or flux, not "
     "'torque'"},
    {"[site]\nschedular = slurm\n", ":2:1: unknown key 'schedular' in [site]"},
    {"[site]\nscheduler = slurm\n[partition g]\nnodes = many\n",
     ":4:9: nodes: expected a whole number, not 'many'"},
    {"[site]\nscheduler = slurm\n[partition g]\n  gpus = -1\n",
     ":4:10: gpus: expected a whole number, not '-1'"},
    {"[site]\nscheduler = slurm\n[partition g]\ntime = 120\n",
     ":4:8: time: '120' is minutes for Slurm, LSF and Flux"},
    {"[site]\nscheduler = slurm\n[partition g]\nmemory = 64\n",
     ":4:10: memory: '64' has no unit; write 64M or 64G"},
    {"[site]\nscheduler = slurm\n[partition g]\nnodes = 1\nnodes = 2\n",
     ":5:1: 'nodes' was given already, in line 4"},
    {"[site]\nscheduler = slurm\n[partition g]\nnodes = 1\ngpus = 4\nnodes = 2\n",
     ":6:1: 'nodes' was given already, in line 4"},
    {"[site]\nscheduler = slurm\n[partition g]\nnodes = 1\n[partition h]\nnodes = 2\n"
     "[partition g]\nnodes = 3\n",
     ":8:1: 'nodes' was given already, in line 4"},
    {"[site]\nscheduler = slurm\n[queue g]\nnodes = 1\n",
     ":4:1: a section is [site] or [partition NAME], not [queue g]"},
    {"[site]\nscheduler = slurm\nscratch = $(rm -rf /)\n",
     ":3:11: scratch: expected a path, perhaps"},
    {"[site]\nscheduler = slurm\nmodules = a ; touch x\n",
     NULL}, /* "; " begins a comment */
    {"[site]\nscheduler = slurm\nmodules = a;b\n", ":3:11: modules: expected names"},
    {"[site]\nscheduler = slurm\nexport = A=`x`\n", ":3:10: export: expected a value"},
    {"[site]\nscheduler = slurm\nexport =\n  A=ib0:1,^x\n  B=\n", NULL},
    {"[site]\nscheduler = slurm\nexport = 1A=b\n", ":3:10: export: expected NAME=value"},
    {"[site]\nscheduler = slurm\nexport = A=b c -d\n",
     ":3:10: export: expected a value of letters, digits and _./+-@:=,%^, not 'A=b c -d'"},
    {"[site]\nscheduler = slurm\nexport = A={b,c}\n", ":3:10: export: expected a value"},
    {"[site]\nscheduler = slurm\ninterface = ib0 ib1\n",
     ":3:13: interface: expected one name, not 'ib0 ib1'"},
    {"[site]\nscheduler = slurm\nscratch = ${A\n", ":3:11: scratch: expected a path"},
    {"[site]\nscheduler = slurm\nscratch = /a/${A-b}\n",
     ":3:11: scratch: expected a path"},
    {"[site]\nscheduler = slurm\nscratch = /a/$/b\n", ":3:11: scratch: expected a path"},
    {"[site]\nscheduler = slurm\nscratch = /a/$A/${B_1}c\n", NULL},
    {"[site]\nscheduler = slurm\naccount-required = true\n",
     ":3:20: account-required: expected yes or no, not 'true'"},
    {"[site]\nscheduler = slurm\njust words\n",
     ":3:1: 'just words' is neither [section] nor "
     "key = value"},
    {"[site]\n[partition\n", ":2:1: '[partition' is neither"},
};

LOOP_TEST(a_wrong_site_file_is_one_line_with_its_place, ARRAY_LEN(sites))
{
    struct ddp_err err = {""};
    char *path = temp_file("x.ini", sites[_i].text);
    struct site *s = site_read(path, &err);
    if (sites[_i].error)
        ck_assert_msg(!s && strncmp(err.text, path, strlen(path)) == 0 &&
                          strncmp(err.text + strlen(path), sites[_i].error,
                                  strlen(sites[_i].error)) == 0,
                      "case %d: %s", _i, err.text);
    else
        ck_assert_msg(s, "case %d: %s", _i, err.text);
    site_destroy(s);
    free(path);
}

TEST(lines_that_ini_would_cut_are_refused)
{
    struct ddp_err err = {""};
    char *text = xasprintf("[site]\nscheduler = slurm\ntitle = %0300d\n", 1);
    char *path = temp_file("x.ini", text);
    ck_assert_ptr_null(site_read(path, &err));
    ck_assert_msg(strstr(err.text, "x.ini:3:1: a line of 308 characters; at most 197"),
                  "%s", err.text);
    ck_assert_ptr_null(site_read("/proc/none/x.ini", &err));
    ck_assert_msg(strstr(err.text, "cannot open the site file '/proc/none/x.ini': "),
                  "%s", err.text);
    ck_assert_ptr_null(site_read("/tmp/", &err));
    ck_assert_ptr_null(site_read("/proc/self/exe", &err));
    free(path);
    free(text);
}

/* --- requests of a job -------------------------------------------------------------- */

/* The script of `ddprun --script ... ./train`. */
static int make(struct opts *o, struct script *s, struct ddp_err *err)
{
    static char program[] = "./train", own[] = "ddprun";
    static char *argv[] = {program, NULL}, *words[] = {own, NULL};
    o->argv = argv;
    return script_make(o, &(struct script_place){.words = words, .file = "job.sh"}, s,
                       err);
}

/* `line` is in the script, or in the error. */
static void assert_made(struct opts *o, bool wrong, const char *line, int i)
{
    struct script s;
    struct ddp_err err = {""};
    int rc = make(o, &s, &err);
    ck_assert_msg(rc == (wrong ? -1 : 0) && strstr(rc == 0 ? s.text : err.text, line),
                  "case %d: %s%s", i, err.text, s.text ? s.text : "");
    script_finish(&s);
}

static const char small_site[] =
    "[site]\ntitle = T\nscheduler = slurm\naccount-required = yes\n"
    "request = --gres=gpu:{{gpus}}\n"
    "[partition gpu]\nnodes = 4\ngpus = 4\ncores = 32\n"
    "memory = 100G\ntime = 2d\nnode-hours = 100\n"
    "[partition big]\nnodes = 8\ngpus = 8\ncores = 64\ntime = 1d\n"
    "preemptible = yes\n"
    "[partition cpu]\nnodes = 100\ngpus = 0\ncores = 20\ntime = 5d\n";

/* As in the options: nodes, GPUs, ranks per node, np, hours, CPUs. */
static const struct {
    int nodes, gpus, per_node, np, hours, cpus;
    const char *partition;
    const char *line; /* of the script, or the error */
    bool wrong;
} asks[] = {
    {0, -1, 0, 0, 1, 0, NULL, "#SBATCH --partition=gpu\n", false},
    {2, 4, 0, 0, 1, 0, NULL, "#SBATCH --gres=gpu:4\n", false},
    {2, 4, 0, 0, 1, 0, NULL, "#SBATCH --mem=0\n", false},
    {1, 2, 0, 0, 1, 0, NULL, "#SBATCH --mem=51200M\n", false}, /* half a node */
    {0, -1, 0, 10, 1, 0, NULL, "#SBATCH --nodes=3\n", false},
    {0, -1, 0, 10, 1, 0, NULL, "-np 10 --nnodes 3 --nproc-per-node 4 --grace", false},
    {0, -1, 0, 2, 1, 0, NULL, "#SBATCH --gres=gpu:2\n", false},
    {2, -1, 3, 0, 1, 0, NULL, "ddprun -np 6 --nnodes 2 --nproc-per-node 3 --grace",
     false},
    {2, -1, 8, 0, 1, 0, NULL,
     "8 ranks on the 4 GPUs of a node; write --nproc-per-node 4, or --oversubscribe",
     true},
    {50, 0, 0, 0, 1, 0, NULL, "#SBATCH --partition=cpu\n", false},
    {8, 8, 0, 0, 1, 0, "big", "#SBATCH --nodes=8\n", false},
    {5, 4, 0, 0, 1, 0, NULL, "only big has room for this job, and others may take", true},
    {5, 4, 0, 0, 1, 0, "gpu",
     "a job in gpu has at most 4 nodes, not 5; write -N 4, or "
     "--partition big",
     true},
    {200, 0, 0, 0, 1, 0, NULL,
     "a job in cpu has at most 100 nodes, not 200; write --partition "
     "cpu -N 100",
     true},
    {1, 9, 0, 0, 1, 0, NULL,
     "a node of big has 8 GPUs, not 9; write --gpus-per-node 8 -N 2", true},
    {1, 1, 0, 0, 1, 0, "cpu",
     "the nodes of cpu have no GPUs; write --gpus-per-node 0, or "
     "--partition gpu",
     true},
    {1, 4, 0, 0, 49, 0, "gpu",
     "a job in gpu runs for at most 2d, not 2d1h; write --time 2d", true},
    {4, 4, 0, 0, 40, 0, "gpu",
     "a job in gpu has at most 100 node-hours, not 4 x 1d16h; write "
     "--time 1d1h",
     true},
    {1, 4, 0, 0, 1, 9, "gpu",
     "a node of gpu has 32 cores, not 4 ranks x 9 = 36; write "
     "--cpus-per-task 8, or --partition big",
     true},
    {1, 4, 0, 0, 1, 9, NULL, "only big has room for this job, and others may take", true},
    {1, 0, 21, 0, 1, 0, NULL,
     "a node of cpu has 20 cores, too few for 21 ranks; write "
     "--nproc-per-node 20",
     true},
    {1, 1, 0, 0, 1, 0, "cpus",
     "has no partition 'cpus'; write --partition with one of gpu, "
     "big, cpu",
     true},
};

LOOP_TEST(limits_are_checked_and_the_cure_is_named, ARRAY_LEN(asks))
{
    char *path = temp_file("x.ini", small_site);
    struct opts o = {.script = SCHED_SLURM,
                     .site = path,
                     .account = "a",
                     .nnodes = asks[_i].nodes,
                     .gpus_per_node = asks[_i].gpus,
                     .per_node = asks[_i].per_node,
                     .np = asks[_i].np,
                     .walltime_s = asks[_i].hours * 3600,
                     .cpus_per_task = asks[_i].cpus,
                     .partition = asks[_i].partition};
    assert_made(&o, asks[_i].wrong, asks[_i].line, _i);
    o.account = NULL;
    assert_made(&o, true, "", _i);
    free(path);
}

static const char two_sizes[] =
    "[site]\nscheduler = slurm\nrequest = --gres=gpu:{{gpus}}\n"
    "[partition small]\nnodes = 1\ngpus = 8\ncores = 8\nmemory = 100G\n"
    "node-hours = 2\n"
    "[partition large]\nnodes = 4\ngpus = 2\ncores = 64\nmemory = 900G\n"
    "[partition cpu]\nnodes = 9\ngpus = 0\ncores = 64\n";

/* Without --partition it is the first that the whole job fits, and what a message names
 * is accepted. */
static const struct {
    struct opts o;
    const char *line; /* of the script, or the error */
    bool wrong;
} choices[] = {
    {{.gpus_per_node = 2, .np = 2}, "--partition=small\n", false},
    {{.gpus_per_node = 2, .np = 4}, "--partition=large\n", false},
    {{.gpus_per_node = 2, .np = 4, .partition = "small"},
     "a job in small has at most 1 node, not 2; write -np 2, or --partition large",
     true},
    {{.gpus_per_node = 2, .nnodes = 2, .partition = "small"},
     "a job in small has at most 1 node, not 2; write -N 1, or --partition large",
     true},
    {{.gpus_per_node = 2, .np = 40}, "; write --partition large -np 8", true},
    {{.gpus_per_node = 1, .memory_mb = 500 << 10}, "--partition=large\n", false},
    {{.gpus_per_node = 1, .memory_mb = 500 << 10, .partition = "small"},
     "a node of small has 100G for jobs; write --mem 100G, or --partition large",
     true},
    {{.gpus_per_node = 1, .cpus_per_task = 32}, "--partition=large\n", false},
    {{.gpus_per_node = 1, .cpus_per_task = 32, .partition = "small"},
     "; write --cpus-per-task 8, or --partition large",
     true},
    {{.gpus_per_node = 1, .walltime_s = 3 * 3600}, "--partition=large\n", false},
    {{.gpus_per_node = 1, .walltime_s = 3 * 3600, .partition = "small"},
     "; write --time 2h, or --partition large",
     true},
    {{.gpus_per_node = 0, .per_node = 32}, "--partition=cpu\n", false},
    /* not moved to nodes without GPUs */
    {{.gpus_per_node = -1, .per_node = 9}, "9 ranks on the 8 GPUs of a node; ", true},
    {{.gpus_per_node = 0, .per_node = 64, .cpus_per_task = 4096},
     "a node of cpu has 64 cores, not 64 ranks x 4096 = 262144; ",
     true},
};

LOOP_TEST(the_first_partition_that_fits_is_taken, ARRAY_LEN(choices))
{
    char *path = temp_file("x.ini", two_sizes);
    struct opts o = choices[_i].o;
    o.site = path;
    o.submit = true;
    assert_made(&o, choices[_i].wrong, choices[_i].line, _i);
    free(path);
}

TEST(cpus_are_counted_without_overflow)
{
    struct opts o = {.site = "pbs",
                     .submit = true,
                     .per_node = 1000000,
                     .cpus_per_task = 4096,
                     .gpus_per_node = -1};
    struct script s;
    struct ddp_err err = {""};
    ck_assert_int_eq(make(&o, &s, &err), -1);
    ck_assert_str_eq(err.text, "1 node with 4096000000 CPUs each are too many");
    script_finish(&s);
    o.per_node = 1000;
    o.nnodes = 1000;
    ck_assert_int_eq(make(&o, &s, &err), -1);
    ck_assert_str_eq(err.text, "1000 nodes with 4096000 CPUs each are too many");
    script_finish(&s);
}

/* Grid Engine multiplies the amount by the slots, the hosts or nothing. */
static const struct {
    const char *keys;
    int nodes, gpus;
    const char *line; /* of the script, or the error */
    bool wrong;
} complexes[] = {
    {"request =\n -pe x {{all_gpus}}\n -l gpu={{gpus}}", 4, 4,
     "#$ -pe x 16\n#$ -l gpu=1\n", false},
    {"request =\n -pe x {{nodes}}\n -l gpu={{gpus}}", 4, 4, "#$ -pe x 4\n#$ -l gpu=4\n",
     false},
    {"request =\n -l gpu={{gpus}}", 1, 2, "#$ -l gpu=2\n", false},
    {"request =\n -pe x {{slots}}\n -l gpu={{gpus}}", 4, 4,
     "YES is multiplied by the slots, and 32 slots do not divide 16 GPUs; ask for {{all_gpus}}",
     true},
    {"gpu-consumable = HOST\nrequest =\n -pe x {{slots}}\n -l gpu={{gpus}}", 4, 4,
     "#$ -pe x 32\n#$ -l gpu=4\n", false},
    {"gpu-consumable = JOB\nrequest =\n -pe x {{slots}}\n -l gpu={{gpus}}", 1, 4,
     "#$ -pe x 8\n#$ -l gpu=4\n", false},
    {"gpu-consumable = JOB\nrequest =\n -pe x {{slots}}\n -l gpu={{gpus}}", 4, 4,
     "JOB takes GPUs from the job's first host only, not from 4 nodes; write -N 1", true},
    {"gpu-consumable = NO\nrequest = -l gpu={{gpus}}", 1, 4,
     "expected YES, JOB or HOST, not 'NO'", true},
};

LOOP_TEST(gpus_are_asked_for_as_their_complex_is_defined, ARRAY_LEN(complexes))
{
    char *text = xasprintf("[site]\nscheduler = sge\n%s\n[partition q]\nnodes = 8\n"
                           "gpus = 4\ncores = 8\n",
                           complexes[_i].keys);
    char *path = temp_file("x.ini", text);
    struct opts o = {.site = path,
                     .submit = true,
                     .nnodes = complexes[_i].nodes,
                     .gpus_per_node = complexes[_i].gpus};
    assert_made(&o, complexes[_i].wrong, complexes[_i].line, _i);
    free(path);
    free(text);
}

TEST(every_included_site_makes_scripts)
{
    size_t seen = 0;
    for (const struct embedded *e = embedded_templates; e->name; e++) {
        if (strncmp(e->name, "site/", 5) != 0)
            continue;
        struct script s;
        struct ddp_err err = {""};
        char *name = xstrndup(e->name + 5, strlen(e->name) - 9);
        struct opts o = {.submit = true,
                         .site = name,
                         .account = "a",
                         .gpus_per_node = -1,
                         .requeue = "--resume"};
        ck_ok(make(&o, &s, &err), err);
        char *places = strstr(s.text, "{{"); /* Flux has one of its own */
        ck_assert(!places || (strncmp(places, "{{id}}.out\n", 11) == 0 &&
                              !strstr(places + 2, "{{")));
        script_finish(&s);
        free(name);
        seen++;
    }
    ck_assert_uint_ge(seen, 9);
}

TEST(spares_are_nodes_without_ranks)
{
    char *path = temp_file("x.ini", small_site);
    struct opts o = {.script = SCHED_SLURM,
                     .site = path,
                     .account = "a",
                     .nnodes = 3,
                     .spares = 1,
                     .gpus_per_node = 4,
                     .requeue = "--resume"};
    struct script s;
    struct ddp_err err = {""};
    ck_ok(make(&o, &s, &err), err);
    static const char *const lines[] = {
        "# train: 12 ranks on 3 nodes and 1 spare of gpu,", "#SBATCH --nodes=4\n",
        "#SBATCH --no-kill\n", "|| scontrol requeue \"$1\"",
        "ddprun -np 12 --nnodes 3 --nproc-per-node 4 --grace"};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++)
        ck_assert_msg(strstr(s.text, lines[i]) != NULL, "no '%s' in %s", lines[i],
                      s.text);
    script_finish(&s);
    o.min_nnodes = 2; /* the spare would not be there with fewer nodes: no range */
    ck_ok(make(&o, &s, &err), err);
    ck_assert_ptr_nonnull(strstr(s.text, "#SBATCH --nodes=4\n"));
    script_finish(&s);
    o.min_nnodes = 0;
    o.nnodes = 4;
    o.partition = "gpu";
    ck_assert_int_eq(make(&o, &s, &err), -1);
    ck_assert_msg(
        strstr(err.text, "a job in gpu has at most 4 nodes, not 4 and 1 spare; "), "%s",
        err.text);
    script_finish(&s);
    free(path);
}

TEST(a_range_of_nodes_is_asked_for)
{
    static const char *const slurm[] = {"# train: 8-16 ranks on 2-4 nodes of gpu,",
                                        "#SBATCH --nodes=2-4\n", "#SBATCH --mincpus=32\n",
                                        "#SBATCH --no-kill\n",
                                        "ddprun --nnodes 2:4 --nproc-per-node 4 --grace"};
    char *path = temp_file("x.ini", small_site);
    struct opts o = {.script = SCHED_SLURM,
                     .site = path,
                     .account = "a",
                     .min_nnodes = 2,
                     .nnodes = 4,
                     .gpus_per_node = 4};
    struct script s;
    struct ddp_err err = {""};
    ck_ok(make(&o, &s, &err), err);
    for (size_t i = 0; i < ARRAY_LEN(slurm); i++)
        ck_assert_msg(strstr(s.text, slurm[i]) != NULL, "no '%s' in %s", slurm[i],
                      s.text);
    script_finish(&s);
    o.nnodes = 5;
    o.partition = "gpu";
    ck_assert_int_eq(make(&o, &s, &err), -1);
    ck_assert_msg(strstr(err.text, "at most 4 nodes, not 5; ") != NULL, "%s", err.text);
    script_finish(&s);
    o = (struct opts){.site = "sge", .script = SCHED_SGE, .min_nnodes = 2, .nnodes = 4};
    ck_ok(make(&o, &s, &err), err);
    ck_assert_msg(strstr(s.text, "#$ -pe mpi 4\n") &&
                      strstr(s.text, "ddprun --nnodes 2:4 --nproc-per-node 1 "),
                  "%s", s.text);
    script_finish(&s);
    free(path);
}

/* PBS, LSF and Flux end a job that has lost a node. */
static const struct {
    const char *site;
    int spares, min_nnodes;
    const char *error;
} ended[] = {
    {"pbs", 1, 0, "--spares: only Slurm "},
    {"lsf", 1, 0, "--spares: only Slurm "},
    {"flux", 1, 0, "--spares: only Slurm "},
    {"pbs", 0, 2, "--nnodes MIN:MAX: only Slurm "},
    {"lsf", 0, 2, "; write --nnodes N, and let --requeue start "},
};

LOOP_TEST(no_job_is_to_go_on_that_its_scheduler_ends, ARRAY_LEN(ended))
{
    struct opts o = {.submit = true,
                     .site = ended[_i].site,
                     .spares = ended[_i].spares,
                     .min_nnodes = ended[_i].min_nnodes,
                     .nnodes = 4,
                     .gpus_per_node = -1};
    assert_made(&o, true, ended[_i].error, _i);
}
