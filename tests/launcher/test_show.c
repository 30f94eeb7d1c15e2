#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/alloc/hosts.h"
#include "launcher/place/show.h"
#include "tests/support/golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *environment[] = {(char[]){"HOME=/home/me"},  (char[]){"PATH=/usr/bin:/bin"},
                              (char[]){"SLURM_PROCID=0"}, (char[]){"OMP_NUM_THREADS=3"},
                              (char[]){"SECRET=hush"},    (char[]){"TOKEN=mine"},
                              (char[]){"PMIX_RANK=0"},    NULL};

static char *program[] = {(char[]){"python"}, (char[]){"train it.py"}, NULL};
static char *commands[] = {(char[]){"n2: ssh n2 ddprun-agent"}, NULL};

static const struct {
    const char *golden, *hostfile;
    int ngpus;
    struct opts opts;
} cases[] = {
    {"dry_run_block.txt",
     "n1 slots=2\nbob@n2 slots=2 port=2222\nn3\n",
     0,
     {.np = 4, .rank_names = NAMES_ALL}},
    {"dry_run_cyclic.txt",
     "n1:2\nn2:2\n",
     0,
     {.map_by = MAP_CYCLIC, .interface = "ib0", .bind_to = BIND_CORE}},
    {"dry_run_gpus.txt",
     "n1\nn2\n",
     2,
     {.map_by = MAP_PPR,
      .ppr = 2,
      .bind_to = BIND_NUMA | BIND_ONE_GPU,
      .store = STORE_RANK0,
      .master_addr = "10.0.0.7"}},
    {"dry_run_over.txt",
     "n[1-3] slots=1 max_slots=2\n",
     0,
     {.np = 5, .oversubscribe = true, .rank_names = NAMES_SLURM}},
};

/* The CPUs of node 0 are known, those of the others are not. */
LOOP_TEST(the_output_of_a_dry_run, ARRAY_LEN(cases))
{
    struct ddp_err err = {""};
    struct alloc alloc = {.source = "hostfile"};
    struct opts opts = cases[_i].opts;
    opts.argv = program;
    const char *file = cases[_i].hostfile;
    ck_ok(hostfile_parse("hosts", file, strlen(file), &alloc, &err), err);
    for (size_t i = 0; i < alloc.nnodes; i++)
        alloc_resolve(&alloc, i, cases[_i].ngpus);
    struct plan *plan = plan_make(&opts, &alloc, &err);
    ck_assert_msg(plan != NULL, "%s", err.text);
    char devices[][2] = {"0", "1"};
    struct binding first[] = {
        {.ncpus = 4, .cpus_text = (char[]){"0-3"}, .numa = 0, .gpu = 0},
        {.ncpus = 4, .cpus_text = (char[]){"4-7"}, .numa = -1, .gpu = 1}};
    if (opts.bind_to & BIND_ONE_GPU) {
        first[0].gpu_text = devices[0];
        first[1].gpu_text = devices[1];
    }
    const struct binding *bindings[] = {first, NULL, NULL};
    const struct rank_facts facts = {0};
    struct strv env = {0}, user = {0};
    strv_push_all(&env, environment);
    strv_push(&user, "TOKEN");
    const struct show show = {&opts,  &alloc, plan,  bindings,
                              &facts, &env,   &user, commands};
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    show_dry_run(&show, out);
    fclose(out);
    golden_check(cases[_i].golden, text);
    ck_assert_ptr_null(strstr(text, "hush")); /* inherited values are not shown */
    free(text);
    strv_finish(&env);
    strv_finish(&user);
    plan_destroy(plan);
    for (size_t i = 0; i < alloc.nnodes; i++) {
        free(alloc.nodes[i].name);
        free(alloc.nodes[i].user);
        free(alloc.nodes[i].slots_from);
    }
    free(alloc.nodes);
}
