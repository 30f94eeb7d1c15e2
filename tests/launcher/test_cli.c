#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/cli/help.h"
#include "launcher/cli/options.h"
#include "tests/launcher/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int parse(const char *rest, struct opts *o, struct ddp_err *err)
{
    char line[512];
    snprintf(line, sizeof line, "ddprun %s", rest);
    return parse_words(line, o, err);
}

/* Spellings of the same option. */
static const struct {
    const char *line;
    int np, per_node;
    const char *hosts, *hostfile, *program;
} spellings[] = {
    {"-np 4 prog", 4, 0, NULL, NULL, "prog"},
    {"-n 4 prog", 4, 0, NULL, NULL, "prog"},
    {"-n4 prog", 4, 0, NULL, NULL, "prog"},
    {"--np 4 prog", 4, 0, NULL, NULL, "prog"},
    {"--np=4 prog", 4, 0, NULL, NULL, "prog"},
    {"-np=4 prog", 4, 0, NULL, NULL, "prog"},
    {"-H a,b prog", 0, 0, "a,b", NULL, "prog"},
    {"-Ha,b prog", 0, 0, "a,b", NULL, "prog"},
    {"--host a:2,b:2 prog", 0, 0, "a:2,b:2", NULL, "prog"},
    {"-host a prog", 0, 0, "a", NULL, "prog"},
    {"-hosts a prog", 0, 0, "a", NULL, "prog"},
    {"--hosts a prog", 0, 0, "a", NULL, "prog"},
    {"--hostfile f prog", 0, 0, NULL, "f", "prog"},
    {"-hostfile f prog", 0, 0, NULL, "f", "prog"},
    {"--machinefile f prog", 0, 0, NULL, "f", "prog"},
    {"-machinefile=f prog", 0, 0, NULL, "f", "prog"},
    {"-f f prog", 0, 0, NULL, "f", "prog"},
    {"-ppn 2 prog", 0, 2, NULL, NULL, "prog"},
    {"-N 2 prog", 0, 2, NULL, NULL, "prog"},
    {"--npernode 2 prog", 0, 2, NULL, NULL, "prog"},
    {"--nproc-per-node 2 prog", 0, 2, NULL, NULL, "prog"},
    {"--nproc_per_node=2 prog", 0, 2, NULL, NULL, "prog"},
    {"--nproc-per-node 2 --nproc-per-node gpu prog", 0, 0, NULL, NULL, "prog"},
    {"--nproc-per-node=auto prog", 0, 0, NULL, NULL, "prog"},
    {"--ntasks-per-node 2 prog", 0, 2, NULL, NULL, "prog"},
    {"-np 2 -- -prog", 2, 0, NULL, NULL, "-prog"},
    {"-np 2 prog -np 9 -H x", 2, 0, NULL, NULL, "prog"}, /* of the program */
    /* as their own documentation writes them */
    {"--standalone --nnodes=1 --nproc-per-node=4 prog", 0, 4, NULL, NULL, "prog"},
    {"--nnodes=2 --nproc_per_node=8 --max-restarts=3 --rdzv-id=7 --rdzv-backend=c10d "
     "--rdzv-endpoint=h:29400 prog",
     0, 8, NULL, NULL, "prog"},
    {"--log-dir out --tee 3 -t 3 --role trainer -m pack.module", 0, 0, NULL, NULL,
     "pack.module"},
    {"-np 4 -H a:2,b:2 -bind-to none -map-by slot -x LD_LIBRARY_PATH -mca pml ob1 -mca btl "
     "^openib prog",
     4, 0, "a:2,b:2", NULL, "prog"},
    {"--allow-run-as-root --pernode --report-bindings -q prog", 0, 1, NULL, NULL, "prog"},
    {"-perhost 2 -genv I_MPI_DEBUG 5 -genvall -bootstrap ssh -l -n 4 prog", 4, 2, NULL,
     NULL, "prog"},
    {"-np 4 -H a:2,b:2 --gloo --network-interface eth0 prog", 4, 0, "a:2,b:2", NULL,
     "prog"},
    {"-np 4 --mpi --timeline-filename t --autotune prog", 4, 0, NULL, NULL, "prog"},
    {"--mpi pmi -np 4 prog", 4, 0, NULL, NULL, "prog"},
    {"--mpi prog", 0, 0, NULL, NULL, "prog"},
    {"-np 2 -- prog : -np 3 x", 2, 0, NULL, NULL, "prog"},
};

LOOP_TEST(spellings_of_other_launchers, ARRAY_LEN(spellings))
{
    struct opts o;
    struct ddp_err err;
    ck_ok(parse(spellings[_i].line, &o, &err), err);
    ck_assert_int_eq(o.np, spellings[_i].np);
    ck_assert_int_eq(o.per_node, spellings[_i].per_node);
    ck_assert_int_eq(o.per_gpu, strstr(spellings[_i].line, "node gpu") != NULL);
    ck_assert_pstr_eq(o.hosts, spellings[_i].hosts);
    ck_assert_pstr_eq(o.hostfile, spellings[_i].hostfile);
    ck_assert_str_eq(o.argv[0], spellings[_i].program);
    opts_finish(&o);
}

static const struct {
    const char *line, *error;
} bad[] = {
    {"", "no program given (try ddprun --help)"},
    {"-np 2", "no program given (try ddprun --help)"},
    {"-np", "-np takes N (try ddprun --help)"},
    {"-np two prog",
     "-np takes a whole number from 1 to 10000000, not 'two' (try ddprun --help)"},
    {"-np 0 prog",
     "-np takes a whole number from 1 to 10000000, not '0' (try ddprun --help)"},
    {"--np=-3 prog",
     "--np takes a whole number from 1 to 10000000, not '-3' (try ddprun --help)"},
    {"-np 99999999999999999999 prog",
     "-np takes a whole number from 1 to 10000000, not '99999999999999999999' (try ddprun "
     "--help)"},
    {"--hostfil f prog",
     "unknown option '--hostfil', did you mean --hostfile? (try ddprun --help)"},
    {"--tiemout 5 prog",
     "unknown option '--tiemout', did you mean --timeout? (try ddprun --help)"},
    {"--rule 1 prog", "unknown option '--rule' (try ddprun --help)"},
    {"--nproc 2 prog",
     "unknown option '--nproc', did you mean --nproc-per-node? (try ddprun --help)"},
    {"--list-sites x",
     "--list-sites starts nothing, so 'x' cannot follow (try ddprun --help)"},
    {"--report-on 7 prog",
     "--report-on starts nothing, so 'prog' cannot follow (try ddprun --help)"},
    {"2 true", "'2' is no program; -np 2 starts so many ranks (try ddprun --help)"},
    {"--nqp 2 prog", "unknown option '--nqp', did you mean --np? (try ddprun --help)"},
    {"--qc 2 prog", "unknown option '--qc' (try ddprun --help)"},
    {"--master-addr h:x prog",
     "--master-addr takes an address, or address:port, not 'h:x' (try ddprun --help)"},
    {"--master-addr [::1 prog",
     "--master-addr '[::1': [address]:port is the form (try ddprun --help)"},
    {"--tag-output on prog",
     "'--tag-output on': write --tag-output=on (try ddprun --help)"},
    {"--stragglers 5 prog", "'--stragglers 5': write --stragglers=5 (try ddprun --help)"},
    {"-H a -np 2 -H b prog",
     "-H is given twice; name all hosts in one (try ddprun --help)"},
    {"--hostfile a --machinefile b prog",
     "--machinefile is given twice; name all hosts in one (try ddprun --help)"},
    {"--include a -H b prog",
     "-H and --include choose the same; use -H (try ddprun --help)"},
    {"--preflight --dry-run prog",
     "--preflight and --dry-run: leave one out (try ddprun --help)"},
    {"--preflight --scaling 1,2 prog",
     "--preflight and --scaling: leave one out (try ddprun --help)"},
    {"--fetch-data mnist --dry-run",
     "--fetch-data and --dry-run: leave one out (try ddprun --help)"},
    {"--scaling-dir d prog", "--scaling-dir needs --scaling SIZES (try ddprun --help)"},
    {"-z prog", "unknown option '-z' (try ddprun --help)"},
    {"--dry-run=1 prog", "--dry-run takes no value (try ddprun --help)"},
    {"--map-by dist prog", "--map-by is block, slot, cyclic, node or ppr:N:node, not "
                           "'dist' (try ddprun --help)"},
    {"--map-by ppr:2:socket prog",
     "--map-by 'ppr:2:socket': only ppr:N:node is known, N from 1 (try ddprun --help)"},
    {"--map-by ppr:0:node prog",
     "--map-by 'ppr:0:node': only ppr:N:node is known, N from 1 (try ddprun --help)"},
    {"--map-by ppr:N:node prog",
     "--map-by 'ppr:N:node': only ppr:N:node is known, N from 1 (try ddprun --help)"},
    {"--bind-to l3 prog", "--bind-to is auto, none, core, numa, socket or hwthread, not "
                          "'l3' (try ddprun --help)"},
    {"--timeout 5x prog", NULL},
    {"--timeout 0 prog", "--timeout is at least 0.001 s, not '0' (try ddprun --help)"},
    {"--output-from 3-1 prog",
     "--output-from: '3-1': column 1: 3-1 counts down (try ddprun --help)"},
    {"-x =v prog", "-x takes NAME or NAME=value, not '=v' (try ddprun --help)"},
    {"--rank-names ompi,x prog",
     "--rank-names is all, none, or a list of ompi, slurm, pmi, tf, dmlc and paddle, not 'ompi,x' "
     "(try ddprun --help)"},
    {"--tag-output=maybe prog",
     "--tag-output is auto, off or on, not 'maybe' (try ddprun --help)"},
    {"--preload torch,,numpy prog",
     "--preload takes Python modules such as torch,numpy, not 'torch,,numpy' (try ddprun "
     "--help)"},
    {"--preload torch;x prog", "--preload takes Python modules such as torch,numpy, not "
                               "'torch;x' (try ddprun --help)"},
    {"--wdir= prog", "--wdir: an empty DIR (try ddprun --help)"},
    {"--ssh \t prog", "--ssh: an empty COMMAND (try ddprun --help)"},
    {"--nnodes 4:1 prog",
     "--nnodes takes N, or MIN:MAX hosts, not '4:1' (try ddprun --help)"},
    {"-np2 prog", "unknown option '-np2', did you mean --np? (try ddprun --help)"},
    {"--hlep", "unknown option '--hlep', did you mean --help? (try ddprun --help)"},
    {"--rankfile f -p 22 --config-file f -np 4 prog",
     "unknown here: '--rankfile': list the hosts in that order, with slots, and use "
     "--map-by; '-p': srun's partition is for salloc and sbatch; horovodrun's port is "
     "--ssh 'ssh -p PORT'; '--config-file': give its values as options (try ddprun --help)"},
    {"--logs-specs=3 prog",
     "unknown here: '--logs-specs': use --output-filename (try ddprun --help)"},
    {"-genv A", "-genv takes two values (try ddprun --help)"},
    {"--perhost x prog",
     "--nproc-per-node takes a whole number from 1 to 10000000, not 'x' "
     "(try ddprun --help)"},
};

static const struct {
    const char *line, *addr;
    int port;
} masters[] = {
    {"--master-addr h prog", "h", 0},
    {"--master_addr h:29500 prog", "h", 29500},
    {"--master-port 7 --master-addr h:7 prog", "h", 7},
    {"--master-addr h --master-port 7 prog", "h", 7},
    {"--rdzv-endpoint 10.0.0.1:29400 prog", "10.0.0.1", 29400},
    {"--rdzv-endpoint localhost:0 prog", "localhost", 0},
    {"--master-addr [fd77::1]:7 prog", "fd77::1", 7},
    {"--master-addr [fd77::1] prog", "fd77::1", 0},
    {"--master-addr fd77::1 prog", "fd77::1", 0},
};

LOOP_TEST(a_master_address_may_contain_the_port, ARRAY_LEN(masters))
{
    struct opts o;
    struct ddp_err err;
    ck_assert_int_eq(parse(masters[_i].line, &o, &err), 0);
    ck_assert_str_eq(o.master_addr, masters[_i].addr);
    ck_assert_int_eq(o.master_port, masters[_i].port);
    ck_assert_int_eq(o.node_rank, -1);
    opts_finish(&o);
}

/* --ui takes the next word if that is a port or an address, not the program. */
static const struct {
    const char *line, *ui, *program;
} pages[] = {
    {"--ui prog", "0", "prog"},
    {"--ui 8080 prog", "8080", "prog"},
    {"--ui=8080 prog", "8080", "prog"},
    {"--ui 0.0.0.0:8080 prog", "0.0.0.0:8080", "prog"},
    {"--ui [::1]:8080 prog", "[::1]:8080", "prog"},
    {"--ui 127.0.0.1: prog", "127.0.0.1:", "prog"}, /* an error later */
    {"--ui ./a:80 8080", "0", "./a:80"},
    {"--ui 8080x", "0", "8080x"},
};

LOOP_TEST(an_address_of_the_page_is_no_program, ARRAY_LEN(pages))
{
    struct opts o;
    struct ddp_err err;
    ck_ok(parse(pages[_i].line, &o, &err), err);
    ck_assert_str_eq(o.ui, pages[_i].ui);
    ck_assert_str_eq(o.argv[0], pages[_i].program);
    opts_finish(&o);
}

/* Options of other launchers, and what a batch script passes on of them. */
TEST(foreign_options_are_translated)
{
    struct opts o;
    struct ddp_err err;
    ck_ok(
        parse(
            "--mca btl ^tcp -env A 1 -genv B=2 --cycle-time-ms=5 --autotune --log-dir d "
            "--prepend-rank --rdzv_id 7 --standalone prog",
            &o, &err),
        err);
    char *exported = shell_join(o.export_env.v), *passed = shell_join(o.passed.v),
         *ignored = shell_join(o.ignored.v);
    ck_assert_str_eq(exported, "'OMPI_MCA_btl=^tcp' A=1 B=2 HOROVOD_CYCLE_TIME=5 "
                               "HOROVOD_AUTOTUNE=1");
    ck_assert_str_eq(passed,
                     "-x 'OMPI_MCA_btl=^tcp' -x A=1 -x B=2 -x HOROVOD_CYCLE_TIME=5 "
                     "-x HOROVOD_AUTOTUNE=1 --output-filename=d --tag-output=on");
    ck_assert_str_eq(ignored, "--rdzv_id --standalone");
    ck_assert_str_eq(o.output_filename, "d");
    ck_assert_int_eq(o.tag_output, TAG_ON);
    free(exported);
    free(passed);
    free(ignored);
    opts_finish(&o);
}

/* prog1 : -np 2 prog2 */
static const struct {
    const char *line, *argv, *apps, *error;
    int np;
} several[] = {
    {"-np 2 a x : -np 3 b", "a x b", "'2 2'", NULL, 5},
    {"-np 1 a : -n2 b y : --np=3 c", "a b y c", "'1 1' '3 3'", NULL, 6},
    {"-np 2 a : b", "a : b", NULL, NULL, 2},
    {"-np 2 -- a : -np 3 b", "a : -np 3 b", NULL, NULL, 2},
    {"-np 2 a -c :", "a -c :", NULL, NULL, 2},
    {"a :", "a :", NULL, NULL, 0},
    {"-np 2 -- a :", "a :", NULL, NULL, 2},
    {"-np 2 a :", NULL, NULL, "no program behind ':'; to pass", 0},
    {"-np 2 a : -np 2 b :", NULL, NULL, "no program behind ':'", 0},
    {"-np 2 : -np 2 b", NULL, NULL, "no program before ':'", 0},
    {"a : -np 3 b", NULL, NULL, "'a' is one of several programs: each needs -np N", 0},
    {"-np 1 a : -np 1", NULL, NULL, "no program behind ':'", 0},
    {"-np 1 a : -x A=1 b", NULL, NULL, "'-x' behind ':': only -np may differ", 0},
    {"-np 1 a : -np x b", NULL, NULL, "-np takes a whole number", 0},
    {"--script slurm -np 1 a : -np 1 b", NULL, NULL, "runs one program", 0},
    {"--app /nosuch/file", NULL, NULL, "--app '/nosuch/file': No such file", 0},
    {"--app f a", NULL, NULL, "--app and 'a': the programs are in the file", 0},
};

LOOP_TEST(several_programs_share_the_ranks, ARRAY_LEN(several))
{
    struct opts o;
    struct ddp_err err;
    int rc = parse(several[_i].line, &o, &err);
    ck_assert_msg(rc == (several[_i].error ? -1 : 0), "%s", err.text);
    if (several[_i].error) {
        ck_assert_msg(strstr(err.text, several[_i].error) != NULL, "%s", err.text);
    } else {
        char *argv = shell_join(o.argv), *apps = shell_join(o.apps.v);
        ck_assert_str_eq(argv, several[_i].argv);
        ck_assert_str_eq(apps ? apps : "", several[_i].apps ? several[_i].apps : "");
        ck_assert_int_eq(o.np, several[_i].np);
        free(argv);
        free(apps);
    }
    opts_finish(&o);
}

LOOP_TEST(errors_are_one_line, ARRAY_LEN(bad))
{
    struct opts o;
    struct ddp_err err;
    ck_assert_int_eq(parse(bad[_i].line, &o, &err), -1);
    if (bad[_i].error)
        ck_assert_str_eq(err.text, bad[_i].error);
    ck_assert_ptr_null(strchr(err.text, '\n'));
    ck_assert_ptr_nonnull(strstr(err.text, "(try ddprun --help)"));
    opts_finish(&o);
}

TEST(defaults_are_those_of_the_manual)
{
    struct opts o;
    struct ddp_err err;
    ck_ok(parse("prog", &o, &err), err);
    ck_assert_int_eq(o.np, 0);
    ck_assert_uint_eq(o.rank_names, NAMES_ALL);
    ck_assert_int_eq(o.tree_width, 32);
    ck_assert_int_eq(o.ssh_window, 64);
    ck_assert_int_eq(o.start_timeout_ms, 60000);
    ck_assert_int_eq(o.grace_ms, 5000);
    ck_assert_int_eq(o.hang_after_ms, 300000);
    ck_assert_int_eq(o.timeout_ms, 0);
    ck_assert_int_eq(o.bind_to, BIND_AUTO);
    ck_assert_int_eq(o.map_by, MAP_BLOCK);
    ck_assert_int_eq(o.tag_output, TAG_AUTO);
    ck_assert_int_eq(o.store, STORE_AUTO);
    ck_assert_int_eq(o.input, INPUT_RANK0);
    opts_finish(&o);
}

TEST(every_option_fills_its_field)
{
    struct opts o;
    struct ddp_err err;
    ck_ok(
        parse("--nnodes 3 --oversubscribe --map-by ppr:4:node --bind-to core "
              "--virtual-local-rank -x A=1 -x B --rank-names slurm,pmi --store rank0 "
              "--store-port 4711 --store-open --master-addr m --interface ib0 --wdir /w "
              "--tag-output --timestamp-output --output-filename out --output-from 0-3 "
              "--stdin all p",
              &o, &err),
        err);
    ck_assert_int_eq(o.nnodes, 3);
    ck_assert(o.oversubscribe);
    ck_assert_int_eq(o.map_by, MAP_PPR);
    ck_assert_int_eq(o.ppr, 4);
    ck_assert_int_eq((int)o.bind_to, (int)BIND_CORE | (int)BIND_ONE_GPU);
    ck_assert_uint_eq(o.export_env.n, 2);
    ck_assert_str_eq(o.export_env.v[0], "A=1");
    ck_assert_uint_eq(o.rank_names, NAMES_SLURM | NAMES_PMI);
    ck_assert_int_eq(o.store, STORE_RANK0);
    ck_assert_int_eq(o.store_port, 4711);
    ck_assert(o.store_open);
    ck_assert_str_eq(o.master_addr, "m");
    ck_assert_str_eq(o.interface, "ib0");
    ck_assert_str_eq(o.wdir, "/w");
    ck_assert_int_eq(o.tag_output, TAG_ON);
    ck_assert(o.timestamp_output);
    ck_assert_str_eq(o.output_filename, "out");
    ck_assert_str_eq(o.output_from, "0-3");
    ck_assert_int_eq(o.input, INPUT_ALL);
    opts_finish(&o);

    ck_ok(parse("--timeout 2m --start-timeout 5 --grace 250ms --ssh rsh --ssh-window 7 "
                "--tree-width 0 --agent /a --dry-run --report -v --log-level debug "
                "--virtual-local-rank --bind-to numa --tag-output=off --rank-names none "
                "--stdin none p",
                &o, &err),
          err);
    ck_assert_int_eq(o.timeout_ms, 120000);
    ck_assert_int_eq(o.start_timeout_ms, 5000);
    ck_assert_int_eq(o.grace_ms, 250);
    ck_assert_str_eq(o.ssh, "rsh");
    ck_assert_int_eq(o.ssh_window, 7);
    ck_assert_int_eq(o.tree_width, 0);
    ck_assert_str_eq(o.agent, "/a");
    ck_assert(o.dry_run && o.report && o.verbose && !o.show_env);
    ck_assert_str_eq(o.log_level, "debug");
    ck_assert_int_eq((int)o.bind_to, (int)BIND_NUMA | (int)BIND_ONE_GPU);
    ck_assert_int_eq(o.tag_output, TAG_OFF);
    ck_assert_uint_eq(o.rank_names, 0);
    ck_assert_int_eq(o.store, STORE_AUTO);
    ck_assert_int_eq(o.input, INPUT_NONE);
    opts_finish(&o);
}

/* The last --rank-names counts; a --store that was given stays. */
TEST(the_store_of_paddle_is_rank_0s)
{
    static const struct {
        const char *line;
        enum store_mode store;
    } lines[] = {{"--rank-names all,paddle p", STORE_RANK0},
                 {"--rank-names paddle --rank-names all p", STORE_AUTO},
                 {"--rank-names paddle --store auto p", STORE_RANK0},
                 {"--store launcher --rank-names paddle p", STORE_LAUNCHER}};
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        struct opts o;
        struct ddp_err err = {""};
        ck_ok(parse(lines[i].line, &o, &err), err);
        ck_assert_msg(o.store == lines[i].store, "%s", lines[i].line);
        opts_finish(&o);
    }
}

TEST(the_table_of_variables_needs_no_program)
{
    struct opts o;
    struct ddp_err err;
    ck_ok(parse("--show-env", &o, &err), err);
    ck_assert(o.show_env);
    opts_finish(&o);
}

/* The number of lines, none of which is too long. */
static int help_lines(const char *topic)
{
    char *text = NULL, *save = NULL;
    size_t size;
    struct ddp_err err;
    FILE *out = open_memstream(&text, &size);
    ck_ok(help_show(topic, out, &err), err);
    fclose(out);
    int n = 0;
    for (const char *p = text; (p = strchr(p, '\n')); p++)
        n++;
    for (char *line = strtok_r(text, "\n", &save); line;
         line = strtok_r(NULL, "\n", &save))
        ck_assert_msg(strlen(line) <= 80, "%s", line);
    free(text);
    return n;
}

TEST(help_fits_a_screen_and_has_topics)
{
    struct ddp_err err = {""};
    int all = help_lines("all"), topics = 0, blank = -1; /* lines between topics */
    ck_assert_int_le(help_lines(NULL), 50);
    ck_assert_int_gt(all, 150);
    for (size_t i = 0; i < options_len; i++) {
        if (options[i].names)
            continue;
        topics += help_lines(options[i].arg);
        blank++;
    }
    ck_assert_int_ge(topics + blank, all);
    ck_assert_int_le(help_lines("--nproc_per_node"), 4);
    ck_assert_int_eq(help_show("nosuch", stdout, &err), -1);
    ck_assert_str_eq(err.text,
                     "no help about 'nosuch'; topics: placement, environment, "
                     "output, watch, launch, batch, data, scaling, inspect, all");
}
