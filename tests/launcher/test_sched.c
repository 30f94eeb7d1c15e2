/* Allocations of schedulers, from invented and recorded environments. */
#include "tests/launcher/alloc_text.h"
#include "tests/launcher/set_env.h"
#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/alloc/flux.h"
#include "launcher/alloc/sched.h"
#include "launcher/alloc/source.h"
#include "launcher/place/plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct {
    const char *env, *nodes; /* nodes NULL: an error that contains `what` */
    const char *what;
} slurm[] = {
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-3]", "n1; n2; n3", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_GPUS_PER_NODE=v100:4", "n1 4; n2 4",
     NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_GPUS_PER_NODE=volta:3,kepler:1",
     "n1 4; n2 4", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_GPUS_ON_NODE=8", "n1 8; n2 8", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_GPUS_ON_NODE=4 SLURM_GPUS=8",
     "n1 4; n2 4", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_GPUS_ON_NODE=7 SLURM_GPUS=8", NULL,
     "SLURM_GPUS=8 over 2 nodes, 7 of them on this one"},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_GPUS_PER_NODE=0 SLURM_NTASKS=2 "
     "SLURM_TASKS_PER_NODE=1(x2)", /* as 'salloc --gpus-per-node=0' has it */
     "n1 (else 1); n2 (else 1)", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-3] SLURM_TASKS_PER_NODE=5,1(x2) "
     "SLURM_NTASKS=7",
     "n1 (else 5); n2 (else 1); n3 (else 1)", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-3] SLURM_TASKS_PER_NODE=4(x3) SLURM_NTASKS=9",
     "n1 (else 3); n2 (else 3); n3 (else 3)", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=40(x2)", "n1; n2",
     NULL}, /* CPUs */
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-3] SLURM_TASKS_PER_NODE=2 SLURM_NTASKS=2",
     NULL, "counts 1 nodes, but the node list has 3"},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=2(x3) SLURM_NTASKS=6",
     NULL, "counts 3 nodes, but the node list has 2"},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_TASKS_PER_NODE=2(x2 SLURM_NTASKS=4",
     NULL, "expected the form '4(x2),1'"},
    /* 20.11: only the devices of this node are given */
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=vm,n2 SLURM_JOB_GPUS=0,1,4 SLURMD_NODENAME=vm",
     "vm 3; n2 3", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_JOB_GPUS=0,1,2,3 SLURM_STEP_ID=0 "
     "SLURM_STEP_NODELIST=n2 SLURM_STEP_NUM_TASKS=1 SLURM_STEP_GPUS=0,1",
     "n2 2", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-3] SLURM_GPUS=5 SLURM_JOB_GPUS=0,1", NULL,
     "SLURM_GPUS=5 over 3 nodes, 2 of them on this one"},
    /* the user may have set CUDA_VISIBLE_DEVICES */
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=vm,n2 CUDA_VISIBLE_DEVICES=0 SLURMD_NODENAME=vm "
     "SLURM_NTASKS=8 SLURM_TASKS_PER_NODE=4(x2)",
     "vm (else 4); n2 (else 4)", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=vm,n2 CUDA_VISIBLE_DEVICES=-1 "
     "SLURMD_NODENAME=vm",
     "vm; n2", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] CUDA_VISIBLE_DEVICES=0,1", "n1; n2", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_GPUS_PER_TASK=1 "
     "CUDA_VISIBLE_DEVICES=3",
     "n1; n2", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_TRES_PER_TASK=cpu=2,gres/gpu=1 "
     "SLURM_NTASKS=5 SLURM_TASKS_PER_NODE=4,1 SLURM_GPUS_ON_NODE=4",
     "n1 (else 4); n2 (else 1)", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_TRES_PER_TASK=cpu=2 "
     "SLURM_GPUS_ON_NODE=4",
     "n1 4; n2 4", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=r[1-2]n[08-09]-ib",
     "r1n08-ib; r1n09-ib; r2n08-ib; r2n09-ib", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-70000]", NULL,
     "SLURM_JOB_NODELIST: 'n[1-70000]'"},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n1 SLURM_TASKS_PER_NODE=4(x0) SLURM_NTASKS=4",
     NULL, "SLURM_TASKS_PER_NODE='4(x0)'"},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n1 SLURM_GPUS_PER_NODE=v100:", NULL,
     "SLURM_GPUS_PER_NODE='v100:'"},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[3-1]", NULL, "SLURM_JOB_NODELIST: 'n[3-1]'"},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n2 "
     "SLURM_STEP_NUM_TASKS=1",
     "n2", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_STEP_ID=0 SLURM_STEP_NODELIST=n[1-2] "
     "SLURM_STEP_NUM_TASKS=8",
     NULL, "this step has 8 tasks (SLURM_STEP_NUM_TASKS=8), and ddprun in each"},
    /* salloc's shell on the first node is a step of a special kind */
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-2] SLURM_STEP_ID=4294967290 "
     "SLURM_STEP_NODELIST=n1 SLURM_STEP_NUM_TASKS=1",
     "n1; n2", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n1 SLURM_HET_SIZE=2 "
     "SLURM_JOB_NODELIST_HET_GROUP_0=n1 SLURM_JOB_NODELIST_HET_GROUP_1=m[4-5] "
     "SLURM_NTASKS_HET_GROUP_1=2 SLURM_TASKS_PER_NODE_HET_GROUP_1=1(x2)",
     "n1; m4 (else 1); m5 (else 1)", NULL},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n1 SLURM_HET_SIZE=2 "
     "SLURM_JOB_NODELIST_HET_GROUP_0=n1",
     NULL, "SLURM_JOB_NODELIST_HET_GROUP_1 is not set"},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n1 SLURMD_NODENAME=n1", NULL,
     "not one of the job's"},
    {"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n1 PBS_JOBID=2 PBS_NODEFILE=/x", NULL,
     "two schedulers at once: SLURM_JOB_ID=1 and PBS_JOBID=2"},
    {"SLURM_JOBID=7\033 SLURM_JOB_NODELIST=n1 PBS_JOBID=2 PBS_NODEFILE=/x", NULL,
     "two schedulers at once: SLURM_JOBID=7? and PBS_JOBID=2"},
    {"SLURM_JOBID=7 SLURM_NODELIST=n1 SLURMD_NODENAME=n1", NULL,
     "SLURMD_NODENAME=n1, but this machine is not one of the job's"},
};

/* The tables call this machine "vm". */
static char *with_own_name(const char *text)
{
    char own[256] = "", *out = NULL;
    size_t size;
    gethostname(own, sizeof own - 1);
    FILE *f = open_memstream(&out, &size);
    for (const char *p = text; *p;) {
        bool here = strncmp(p, "vm", 2) == 0 && (p == text || strchr("=, ", p[-1]));
        if (here)
            fputs(own, f);
        else
            fputc(*p, f);
        p += here ? 2 : 1;
    }
    fclose(f);
    return out;
}

LOOP_TEST(slurm_jobs_are_parsed_or_rejected, ARRAY_LEN(slurm))
{
    struct opts opts = {0};
    char *env = with_own_name(slurm[_i].env);
    set_all(env);
    free(env);
    if (slurm[_i].nodes) {
        char *nodes = with_own_name(slurm[_i].nodes);
        check_alloc(&opts, "slurm", nodes);
        free(nodes);
    } else {
        check_refused(&opts, slurm[_i].what);
    }
}

TEST(options_decide_what_variables_do_not)
{
    struct opts opts = {.alloc = "slurm"};
    set_all("SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n1 SLURMD_NODENAME=n1 PBS_JOBID=2 "
            "PBS_NODEFILE=/x");
    check_alloc(&opts, "slurm", "n1");
    opts.alloc = "sge";
    check_refused(&opts, "--alloc sge: not found here");
    opts.alloc = "mpi-hostfile";
    check_refused(&opts, "not found here; no option and no variable names its hosts");
    opts.alloc = "nqs";
    check_refused(&opts, "'nqs' is not one of");
    opts = (struct opts){.alloc = "hosts", .hosts = "other:2"};
    check_alloc(&opts, "-H", "other 2");
}

TEST(hosts_are_selected_from_the_allocation)
{
    struct opts opts = {.hosts = "n2:1,n1"};
    set_all("SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-3] SLURM_GPUS_ON_NODE=4");
    check_alloc(&opts, "slurm", "n2 1; n1 4");
    opts.hosts = "n9";
    check_refused(&opts, "'n9' is not in the allocation of slurm");
}

static const struct {
    const char *hosts;
    int gpus, cap; /* 0: refused */
    bool oversubscribe;
} asked_slots[] = {
    {"n1:2", 0, 2, false}, {"n1:8", 0, 0, false}, {"n1:8", 0, 8, true},
    {"n1:8", 8, 8, false}, {"n1:9", 8, 0, false}, {"n1:2", 1, 2, false},
    {NULL, 8, 8, false},   {NULL, 1, 1, false},   {NULL, 0, 2, false},
};

/* More than the scheduler gives, or the node's GPUs, need --oversubscribe. */
LOOP_TEST(slots_of_the_list_are_those_of_the_allocation, ARRAY_LEN(asked_slots))
{
    struct opts opts = {.hosts = asked_slots[_i].hosts,
                        .oversubscribe = asked_slots[_i].oversubscribe};
    struct ddp_err err = {""};
    int cap;
    set_all("SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n1 SLURM_TASKS_PER_NODE=2 SLURM_NTASKS=2");
    struct alloc *a = alloc_read(&opts, &err);
    ck_assert_msg(a != NULL, "%s", err.text);
    alloc_resolve(a, 0, asked_slots[_i].gpus);
    int rc = plan_cap(&opts, &a->nodes[0], &cap, &err);
    ck_assert_int_eq(rc, asked_slots[_i].cap ? 0 : -1);
    if (rc == 0)
        ck_assert_int_eq(cap, asked_slots[_i].cap);
    else
        ck_assert_ptr_nonnull(strstr(err.text, "slots in the allocation; --oversub"));
    alloc_destroy(a);
}

static const struct {
    const char *file, *nodes, *what;
} pe_files[] = {
    {"n5 2 all.q@n5 UNDEFINED\nn3 2 all.q@n3 UNDEFINED\n", "n5 (else 2); n3 (else 2)",
     NULL},
    {"n1 2 all.q@n1 0,0:0,1\nn1 8 big.q@n1 <NULL>\n", "n1 (else 10)", NULL},
    {"n1\t80\tall.q@n1\tUNDEFINED\r\n\n", "n1 (else 80)", NULL},
    {"n1 40 a@n1 UNDEFINED\nn1.cluster 40 b@n1 UNDEFINED\n", "n1 (else 80)", NULL},
    {"n1\n", NULL, "pe:1: 'n1'"},
    {"n1 0 q U\n", NULL, "pe:1: 'n1 0'"},
    {"n1 -3 q U\n", NULL, "pe:1: 'n1 -3'"},
    {"n1 99999999999 q U\n", NULL, "pe:1: 'n1 99999999999'"},
    {"n1 2 q U\nn2 x q U\n", NULL, "pe:2: 'n2 x'"},
    {"", NULL, "PE_HOSTFILE: "},
};

LOOP_TEST(grid_engine_hostfiles_are_parsed_or_rejected, ARRAY_LEN(pe_files))
{
    struct opts opts = {.alloc = "sge"};
    char *dir = temp_dir(), *path = xasprintf("%s/pe", dir);
    put_file(path, pe_files[_i].file);
    set_all("JOB_ID=2 SGE_ROOT=/x SGE_TASK_ID=undefined");
    setenv("PE_HOSTFILE", path, 1);
    if (pe_files[_i].nodes)
        check_alloc(&opts, "sge", pe_files[_i].nodes);
    else
        check_refused(&opts, pe_files[_i].what);
    free(path);
    free(dir);
}

TEST(pbs_counts_the_lines_of_a_host)
{
    struct opts opts = {.alloc = "pbs"};
    char *dir = temp_dir(), *path = xasprintf("%s/nodes", dir);
    put_file(path, "n1\nn2\r\nn1\n\n");
    set_all("PBS_JOBID=2.server");
    setenv("PBS_NODEFILE", path, 1);
    check_alloc(&opts, "pbs", "n1 (else 2); n2 (else 1)");
    put_file(path, "n1\nn2\n"); /* without a number of ranks per node */
    check_alloc(&opts, "pbs", "n1; n2");
    free(path);
    free(dir);
}

TEST(lsf_lists_hosts_and_counts_alternately)
{
    struct opts opts = {.alloc = "lsf"};
    clearenv();
    setenv("LSB_JOBID", "3", 1);
    setenv("LSB_MCPU_HOSTS", "h1 4 h2 2 ", 1);
    check_alloc(&opts, "lsf", "h1 (else 4); h2 (else 2)");
    setenv("LSB_MCPU_HOSTS", "h1 1 h2 4 h1 3", 1); /* a compound request */
    check_alloc(&opts, "lsf", "h1 (else 4); h2 (else 4)");
    setenv("LSB_MCPU_HOSTS", "h1 4 h2", 1);
    check_refused(&opts, "LSB_MCPU_HOSTS: 'h2': expected a host and a number of slots");
    char *dir = temp_dir(), *path = xasprintf("%s/djob", dir);
    put_file(path, "h1\nh1\nh2\nh1\n");
    unsetenv("LSB_MCPU_HOSTS");
    setenv("LSB_DJOB_HOSTFILE", path, 1);
    check_alloc(&opts, "lsf", "h1 (else 3); h2 (else 1)");
    free(path);
    free(dir);
}

TEST(gpus_of_the_node_precede_slots)
{
    struct opts opts = {.alloc = "lsf"};
    struct ddp_err err;
    clearenv();
    setenv("LSB_JOBID", "3", 1);
    setenv("LSB_MCPU_HOSTS", "h1 80 h2 80", 1);
    struct alloc *a = alloc_read(&opts, &err);
    ck_assert_ptr_nonnull(a);
    alloc_resolve(a, 0, 4);
    alloc_resolve(a, 1, 0);
    ck_assert_int_eq(a->nodes[0].slots, 4);
    ck_assert_int_eq(a->nodes[1].slots, 80);
    ck_assert_str_eq(a->nodes[1].slots_from, "LSB_MCPU_HOSTS: 80 slots");
    ck_assert_str_eq(a->slots_hint, "-n N of the job");
    alloc_destroy(a);
}

TEST(abci_host_list_and_a_contradicting_count)
{
    struct opts opts = {.alloc = "sge"};
    char *dir = temp_dir(), *list = xasprintf("%s/list", dir),
         *pe = xasprintf("%s/pe", dir);
    put_file(list, "g0001\ng0002\n");
    put_file(pe, "g0001 80 gpu@g0001 UNDEFINED\ng0002 80 gpu@g0002 UNDEFINED\n");
    set_all("JOB_ID=2 SGE_ROOT=/x NHOSTS=2 NSLOTS=160 SGE_TASK_ID=undefined");
    setenv("SGE_JOB_HOSTLIST", list, 1);
    check_alloc(&opts, "sge", "g0001 (else 1); g0002 (else 1)");
    setenv("PE_HOSTFILE", pe, 1);
    check_alloc(&opts, "sge", "g0001 (else 80); g0002 (else 80)");
    setenv("NHOSTS", "1", 1); /* in a task of qrsh -V */
    check_refused(&opts, "NHOSTS=1, but PE_HOSTFILE=");
    free(dir);
    free(list);
    free(pe);
}

static const struct {
    const char *file, *nodes, *what;
} orders[] = {
    {"n2\nn1\nn2\n", "n2 (else 2); n1 (else 1)", NULL},
    {"n1*4,n2\n", "n1 (else 4); n2 (else 1)", NULL},
    {"n[2-3,7]*2 , n1 # n9\n\n#\nn2",
     "n2 (else 3); n3 (else 2); n7 (else 2); n1 (else 1)", NULL},
    {"n1*x\n", NULL,
     "order:1:4: the number of tasks must be a whole number from 1 to 1000000, not 'x'"},
    {"n1\nn2*0,n3\n", NULL, "order:2:4: "},
    {"n1;n2\n", NULL, "order:1:3: ';' cannot be in a host name"},
    {"# none\n", NULL, "names no host"},
};

LOOP_TEST(an_arbitrary_order_is_read_as_slurm_does, ARRAY_LEN(orders))
{
    struct opts opts = {.alloc = "slurm"};
    char *dir = temp_dir(), *path = xasprintf("%s/order", dir);
    put_file(path, orders[_i].file);
    set_all("SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n[1-9]");
    setenv("SLURM_HOSTFILE", path, 1);
    if (orders[_i].nodes)
        check_alloc(&opts, "slurm", orders[_i].nodes);
    else
        check_refused(&opts, orders[_i].what);
    free(path);
    free(dir);
}

/* Inherited variables: the scheduler starts processes only on its job's nodes. */
TEST(a_job_without_this_machine_is_rejected)
{
    struct opts opts = {0};
    set_all("LSB_JOBID=3");
    setenv("LSB_MCPU_HOSTS", "203.0.113.1 4 203.0.113.2 4", 1);
    check_refused(&opts, "LSB_JOBID=3, but this machine is not one of the job's");
    opts.hosts = "203.0.113.1";
    check_alloc(&opts, "lsf", "203.0.113.1 (else 4)");
    opts = (struct opts){.alloc = "local"};
    struct ddp_err err;
    struct alloc *a = alloc_read(&opts, &err);
    ck_assert_ptr_nonnull(a);
    ck_assert(a->nodes[0].local);
    alloc_destroy(a);
}

static const struct {
    const char *r, *nodes, *what;
} fluxes[] = {
    {"{\"version\": 1, \"execution\": {\"R_lite\": [{\"rank\": \"0-3\", \"children\": "
     "{\"core\": \"0\"}}], \"starttime\": 0.0, \"expiration\": 0.0, \"nodelist\": "
     "[\"basic-node-[1-4]\"]}}\n",
     "basic-node-1; basic-node-2; basic-node-3; basic-node-4", NULL},
    {"{\"version\": 1, \"execution\": {\"R_lite\": [{\"rank\": \"0,3\", \"children\": "
     "{\"core\": \"0-7\", \"gpu\": \"0-3\"}}, {\"rank\": \"1-2\", \"children\": "
     "{\"core\": \"0-7\", \"gpu\": \"0,2\"}}], \"nodelist\": [\"n[1-2]\", \"m[08-09]\"]}}",
     "n1 4; n2 2; m08 2; m09 4", NULL},
    /* of flux 0.88: a task's job, with its slots; brokers that share a host */
    {"{\"version\": 1, \"execution\": {\"R_lite\": [{\"rank\": \"0-1\", \"children\": "
     "{\"core\": \"0\"}}], \"starttime\": 1795277735.1292014, \"expiration\": 0.0, "
     "\"nslots\": 2, \"nodelist\": [\"node[001-002]\"]}}\n",
     "node001; node002", NULL},
    {"{\"version\": 1, \"execution\": {\"R_lite\": [{\"rank\": \"0-3\", \"children\": "
     "{\"core\": \"0-1\"}}], \"starttime\": 0.0, \"expiration\": 0.0, \"nodelist\": "
     "[\"h,h,h,h\"]}}\n",
     "h; h; h; h", NULL},
    /* drained nodes leave gaps in the ranks */
    {"{\"execution\": {\"R_lite\": [{\"rank\": \"2,5\"}], \"nodelist\": [\"a,b\"]}}",
     "a; b", NULL},
    {"{\"execution\": {\"R_lite\": [{\"rank\": \"0-2\"}], \"nodelist\": [\"a,b\"]}}",
     NULL, "2 names of nodes for 3 ranks"},
    {"{\"execution\": {\"R_lite\": [{\"rank\": \"0-\"}], \"nodelist\": [\"a\"]}}", NULL,
     "Flux's list of resources: "},
    {"{\"execution\": {\"nodelist\": [7]}}", NULL, "a node name that is not a string"},
    {"{\"version\": 1}", NULL, "no list of nodes"},
    {"", NULL, "Flux's list of resources: line 1"},
};

LOOP_TEST(flux_lists_nodes_and_gpus, ARRAY_LEN(fluxes))
{
    struct alloc a = {0};
    struct ddp_err err = {""};
    int rc = flux_parse(fluxes[_i].r, strlen(fluxes[_i].r), &a, &err);
    if (fluxes[_i].nodes) {
        char *text = alloc_text(&a);
        ck_assert_msg(rc == 0, "%s", err.text);
        ck_assert_str_eq(text, fluxes[_i].nodes);
        free(text);
    } else {
        ck_assert_int_eq(rc, -1);
        ck_assert_msg(strstr(err.text, fluxes[_i].what) != NULL, "'%s'", err.text);
    }
    alloc_clear(&a);
}

TEST(sagemakers_gpus_are_its_slots)
{
    struct opts opts = {.alloc = "sagemaker"};
    set_all("SM_HOSTS=[\"algo-10\",\"algo-2\"] SM_CURRENT_HOST=algo-2 SM_NUM_GPUS=8");
    check_alloc(&opts, "sagemaker", "algo-2 8; algo-10 8");
    setenv("SM_NUM_GPUS", "0", 1);
    check_alloc(&opts, "sagemaker", "algo-2; algo-10");
}

/* --- recorded environments ---------------------------------------------------------- */

/* One "NAME=value" a line. */
static bool load(const char *path)
{
    FILE *f = fopen(path, "r");
    if (!f)
        return false;
    clearenv();
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, f) > 0) {
        line[strcspn(line, "\n")] = '\0';
        char *eq = strchr(line, '=');
        if (eq && eq > line) {
            *eq = '\0';
            setenv(line, eq + 1, 1);
        }
    }
    free(line);
    fclose(f);
    return true;
}

static const struct {
    const char *file, *nodes, *what;
} recorded[] = {
    {"2x4-gpu4/batch.env", "node001 4; node002 4", NULL},
    {"2x4-gpu4/task.3.env", NULL,
     "this step has 8 tasks (SLURM_STEP_NUM_TASKS=8), and ddprun in each"},
    {"uneven-n7/batch.env", "node001 (else 5); node002 (else 1); node003 (else 1)", NULL},
    {"uneven-n9x4/batch.env", "node001 (else 3); node002 (else 3); node003 (else 3)",
     NULL},
    {"exclusive/batch.env", "node001 8; node002 8", NULL},
    {"gpus-total/batch.env", NULL, "7 of them on this one"},
    /* on the front end GPUs are unknown: the nodes report them */
    {"interactive/salloc.env", "node001 (else 4); node002 (else 4)", NULL},
    {"hetjob/batch.env", "node001 (else 2); node004 (else 1); node005 (else 1)", NULL},
};

LOOP_TEST(recorded_slurm_environments, ARRAY_LEN(recorded))
{
    struct opts opts = {.alloc = "slurm"}; /* this machine is not one of the nodes */
    char *path = xasprintf(RECORDED_DIR "/slurm-22.05/%s", recorded[_i].file);
    ck_assert_msg(load(path), "cannot read '%s'", path);
    if (recorded[_i].nodes)
        check_alloc(&opts, "slurm", recorded[_i].nodes);
    else
        check_refused(&opts, recorded[_i].what);
    free(path);
}

static const struct {
    const char *dir, *nodes;
} recorded_sge[] = {
    {"sge-8.1.9/pe-mpi-6", NULL},
    {"sge-8.1.9/pe-fill-12", NULL},
    {"sge-8.1.9-fqdn/pe-mpi-6",
     "node005.cluster.local (else 2); node003.cluster.local (else "
     "2); node002.cluster.local (else 1); node004.cluster.local "
     "(else 1)"},
};

TEST(a_recorded_pbs_environment)
{
    struct opts opts = {.alloc = "pbs"};
    ck_assert(load(RECORDED_DIR "/openpbs-23.06/job.env"));
    setenv("PBS_NODEFILE", RECORDED_DIR "/openpbs-23.06/nodes", 1);
    check_alloc(&opts, "pbs", "node001 (else 2); node002 (else 1)");
    opts.hosts = "node002";
    check_alloc(&opts, "pbs", "node002 (else 1)");
    opts = (struct opts){0}; /* it was copied to this machine */
    check_refused(&opts, "PBS_JOBID=2.node001, but this machine is not one of the job's");
}

LOOP_TEST(recorded_grid_engine_environments, ARRAY_LEN(recorded_sge))
{
    struct opts opts = {.alloc = "sge"};
    char *dir = xasprintf(RECORDED_DIR "/%s", recorded_sge[_i].dir);
    char *env = xasprintf("%s/job.env", dir), *file = xasprintf("%s/pe_hostfile", dir);
    ck_assert_msg(load(env), "cannot read '%s'", env);
    long nslots = strtol(getenv("NSLOTS"), NULL, 10), sum = 0;
    size_t nhosts = strtoul(getenv("NHOSTS"), NULL, 10);
    setenv("PE_HOSTFILE", file, 1);
    if (recorded_sge[_i].nodes)
        check_alloc(&opts, "sge", recorded_sge[_i].nodes);
    struct alloc *a = alloc_read(&opts, NULL);
    ck_assert_ptr_nonnull(a);
    for (size_t i = 0; i < a->nnodes; i++)
        sum += a->nodes[i].slots_else;
    ck_assert_uint_eq(a->nnodes, nhosts);
    ck_assert_int_eq(sum, nslots);
    alloc_destroy(a);
    free(dir);
    free(env);
    free(file);
}
