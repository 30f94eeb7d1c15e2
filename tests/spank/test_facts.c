#include "tests/support/suite.h"

#include "common/mem.h"
#include "spank/facts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- what a task is --------------------------------------------------------------------
 */

#define STEP(tasks, nodes, counts)                                \
    "SLURM_STEP_NUM_TASKS=" tasks, "SLURM_STEP_NUM_NODES=" nodes, \
        "SLURM_STEP_TASKS_PER_NODE=" counts, "SLURM_STEP_NODELIST=n[1-" nodes "]"
#define TASK(proc, local, node) \
    "SLURM_PROCID=" proc, "SLURM_LOCALID=" local, "SLURM_NODEID=" node

static const struct {
    const char *env[12];
    int rank, size, local_rank, local_size, node_rank, nnodes, cross_rank, cross_size;
    const char *error; /* NULL: none */
} tasks[] = {
    {{STEP("4", "2", "2(x2)"), TASK("3", "1", "1")}, 3, 4, 1, 2, 1, 2, 1, 2, NULL},
    {{STEP("6", "3", "4,1(x2)"), TASK("0", "0", "0")}, 0, 6, 0, 4, 0, 3, 0, 3, NULL},
    {{STEP("6", "3", "4,1(x2)"), TASK("2", "2", "0")}, 2, 6, 2, 4, 0, 3, 0, 1, NULL},
    {{STEP("6", "3", "4,1(x2)"), TASK("5", "0", "2")}, 5, 6, 0, 1, 2, 3, 2, 3, NULL},
    /* where srun has not set them for the step */
    {{"SLURM_NTASKS=1", "SLURM_NNODES=1", "SLURM_STEP_TASKS_PER_NODE=1",
      TASK("0", "0", "0")},
     0,
     1,
     0,
     1,
     0,
     1,
     0,
     1,
     NULL},
    {{STEP("2", "2", "1(x2)"), "SLURM_PROCID=0", "SLURM_LOCALID=0"},
     0,
     0,
     0,
     0,
     0,
     0,
     0,
     0,
     "SLURM_NODEID is not set"},
    {{STEP("2", "2", "1(x2)"), TASK("zero", "0", "0")},
     0,
     0,
     0,
     0,
     0,
     0,
     0,
     0,
     "SLURM_PROCID='zero' is not a number"},
    {{STEP("2", "1", "2"), TASK("1", "0", "1")},
     0,
     0,
     0,
     0,
     0,
     0,
     0,
     0,
     "task 1 of 2 on node 1 of 1: the variables of this step are not all of one step (of a "
     "heterogeneous one, say)"},
    {{STEP("2", "2", "1"), TASK("1", "0", "1")},
     0,
     0,
     0,
     0,
     0,
     0,
     0,
     0,
     "SLURM_STEP_TASKS_PER_NODE='1' counts 1 nodes, but the node list has 2"},
};

static void copy_env(const char *const *from, struct strv *env)
{
    for (; *from; from++)
        strv_push(env, *from);
}

LOOP_TEST(a_task_is_a_rank, ARRAY_LEN(tasks))
{
    struct rank_facts f = {0};
    struct strv env = {0};
    struct ddp_err err;
    copy_env(tasks[_i].env, &env);
    int rc = step_facts(env.v, &f, &err);
    if (tasks[_i].error) {
        ck_assert_int_eq(rc, -1);
        ck_assert_str_eq(err.text, tasks[_i].error);
    } else {
        ck_ok(rc, err);
        ck_assert_int_eq(f.rank, tasks[_i].rank);
        ck_assert_int_eq(f.size, tasks[_i].size);
        ck_assert_int_eq(f.local_rank, tasks[_i].local_rank);
        ck_assert_int_eq(f.local_size, tasks[_i].local_size);
        ck_assert_int_eq(f.node_rank, tasks[_i].node_rank);
        ck_assert_int_eq(f.nnodes, tasks[_i].nnodes);
        ck_assert_int_eq(f.cross_rank, tasks[_i].cross_rank);
        ck_assert_int_eq(f.cross_size, tasks[_i].cross_size);
    }
    strv_finish(&env);
}

/* --- where rank 0 is
 * -------------------------------------------------------------------- */

static const struct {
    const char *env[5];
    const char *file; /* of SLURM_HOSTFILE; NULL: none */
    const char *master, *error;
} masters[] = {
    {{"SLURM_STEP_NODELIST=N[02-04]"}, NULL, "n02", NULL},
    {{"SLURM_NODELIST=gpu1"}, NULL, "gpu1", NULL},
    {{"SLURM_STEP_NODELIST=n[1-3]", "SLURM_DISTRIBUTION=arbitrary"},
     "\n n3*2\nn1\n",
     "n3",
     NULL},
    {{"SLURM_STEP_NODELIST=n[1-3]", "SLURM_DISTRIBUTION=arbitrary"},
     "n2,n1\n",
     "n2",
     NULL},
    {{"SLURM_STEP_NODELIST=n[1-3]", "SLURM_DISTRIBUTION=cyclic"}, "n3\n", "n1", NULL},
    {{"SLURM_STEP_NODELIST=n[1-3]", "SLURM_DISTRIBUTION=arbitrary"}, "", "n1", NULL},
    {{"PATH=/bin"}, NULL, NULL, "SLURM_STEP_NODELIST is not set"},
    {{"SLURM_STEP_NODELIST=n[1-"}, NULL, NULL, "SLURM_STEP_NODELIST='n[1-'"},
};

LOOP_TEST(the_node_of_rank_0, ARRAY_LEN(masters))
{
    struct strv env = {0};
    struct ddp_err err;
    char *dir = temp_dir();
    copy_env(masters[_i].env, &env);
    if (masters[_i].file) {
        char *path = xasprintf("%s/hosts", dir);
        put_file(path, masters[_i].file);
        strv_pushf(&env, "SLURM_HOSTFILE=%s", path);
        free(path);
    }
    char *master = step_master(env.v, &err);
    if (masters[_i].master) {
        ck_assert_msg(master != NULL, "%s", err.text);
        ck_assert_str_eq(master, masters[_i].master);
    } else {
        ck_assert_ptr_null(master);
        ck_assert_ptr_nonnull(strstr(err.text, masters[_i].error));
    }
    free(master);
    strv_finish(&env);
    free(dir);
}

/* --- ports
 * ------------------------------------------------------------------------------ */

/* Steps of one job, and jobs that follow each other, run side by side. */
TEST(steps_have_different_ports)
{
    static bool taken[PORT_COUNT];
    for (uint32_t job = 4000000; job < 4000100; job++) {
        for (uint32_t step = 0; step < 4; step++) {
            int port = step_port(job, step);
            ck_assert_int_ge(port, PORT_FIRST);
            ck_assert_int_lt(port, PORT_FIRST + PORT_COUNT);
            ck_assert_int_eq(port, step_port(job, step));
            ck_assert(!taken[port - PORT_FIRST]);
            taken[port - PORT_FIRST] = true;
        }
    }
}

TEST(a_value_of_an_environment)
{
    char *env[] = {(char[]){"AB=1"}, (char[]){"A="}, (char[]){"B=x=y"}, NULL};
    ck_assert_str_eq(env_value(env, "AB"), "1");
    ck_assert_str_eq(env_value(env, "B"), "x=y");
    ck_assert_ptr_null(env_value(env, "A"));
    ck_assert_ptr_null(env_value(env, "C"));
    ck_assert_ptr_null(env_value(NULL, "A"));
}
