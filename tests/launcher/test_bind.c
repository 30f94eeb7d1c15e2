#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/place/bind.h"
#include "launcher/place/cpubind.h"
#include "launcher/place/sysview.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* sockets x NUMA nodes each x cores each x threads each, as ddprun-topo would print. The
 * CPUs are numbered as Linux does it: first threads of all cores first. */
static void machine(int sockets, int numas, int cores, int threads, struct topo *t)
{
    char *text = NULL;
    size_t size;
    struct ddp_err err = {""};
    FILE *f = open_memstream(&text, &size);
    int ncores = sockets * numas * cores;
    for (int core = 0; core < ncores; core++) {
        for (int thread = 0; thread < threads; thread++)
            fprintf(f, "%d %d %d %d\n", core + thread * ncores, core, core / cores,
                    core / (cores * numas));
    }
    fclose(f);
    ck_ok(topo_parse(text, t, &err), err);
    free(text);
}

/* "0-3 | 4-7" */
static char *describe(const struct cpu_share *shares, int n)
{
    char *text = xstrdup("");
    for (int i = 0; i < n; i++) {
        char *cpus = idset_text(&shares[i].cpus);
        char *next = xasprintf("%s%s%s", text, i ? " | " : "", cpus);
        free(cpus);
        free(text);
        text = next;
    }
    return text;
}

static const struct {
    int sockets, numas, cores, threads;
    enum bind_to policy;
    int nlocal;
    int near[4];
    const char *shares, *error;
} cases[] = {
    {1, 1, 8, 1, BIND_AUTO, 2, {-1, -1}, "0-3 | 4-7", NULL},
    {1, 1, 8, 2, BIND_AUTO, 2, {-1, -1}, "0-3,8-11 | 4-7,12-15", NULL},
    {1, 1, 5, 1, BIND_AUTO, 2, {-1, -1}, "0-1 | 2-4", NULL},
    {2, 1, 4, 1, BIND_AUTO, 2, {-1, -1}, "0-3 | 4-7", NULL},
    {2, 1, 4, 1, BIND_AUTO, 1, {-1}, "0-7", NULL},
    {2, 1, 4, 1, BIND_AUTO, 1, {1}, "4-7", NULL},          /* its GPU's */
    {2, 1, 4, 1, BIND_AUTO, 2, {1, 1}, "4-5 | 6-7", NULL}, /* both on this NUMA node */
    {2, 1, 4, 1, BIND_AUTO, 4, {1, 0, 1, 0}, "4-5 | 0-1 | 6-7 | 2-3", NULL},
    {2, 1, 1, 1, BIND_AUTO, 2, {1, 1}, "0 | 1", NULL},      /* too few CPUs there: any */
    {2, 1, 4, 1, BIND_AUTO, 2, {0, -1}, "0-3 | 4-7", NULL}, /* one is unknown */
    {1, 1, 1, 2, BIND_AUTO, 2, {-1, -1}, "0 | 1", NULL},
    {1,
     1,
     2,
     1,
     BIND_AUTO,
     3,
     {-1, -1, -1},
     NULL,
     "cannot bind 3 ranks to 2 hardware threads; use --bind-to none"},
    {2, 1, 4, 2, BIND_CORE, 2, {-1, -1}, "0,8 | 4,12", NULL},
    {1,
     1,
     2,
     2,
     BIND_CORE,
     3,
     {-1, -1, -1},
     NULL,
     "cannot bind 3 ranks to 2 cores; use --bind-to none"},
    {2, 1, 4, 2, BIND_HWTHREAD, 2, {-1, -1}, "0 | 4", NULL},
    {1, 1, 2, 2, BIND_HWTHREAD, 4, {-1, -1, -1, -1}, "0 | 2 | 1 | 3", NULL},
    {2, 2, 2, 1, BIND_NUMA, 2, {-1, -1}, "0-1 | 4-5", NULL},
    {2, 2, 2, 1, BIND_SOCKET, 2, {-1, -1}, "0-3 | 4-7", NULL},
    {2, 1, 2, 1, BIND_SOCKET, 4, {-1, -1, -1, -1}, "0-1 | 0-1 | 2-3 | 2-3", NULL},
    {2, 2, 2, 1, BIND_NUMA, 1, {3}, "6-7", NULL},
};

LOOP_TEST(cpus_are_divided, ARRAY_LEN(cases))
{
    struct topo t = {0};
    struct cpu_share shares[4] = {0};
    struct ddp_err err = {""};
    machine(cases[_i].sockets, cases[_i].numas, cases[_i].cores, cases[_i].threads, &t);
    int rc =
        cpubind(cases[_i].policy, &t, cases[_i].near, cases[_i].nlocal, shares, &err);
    if (cases[_i].error) {
        ck_assert_int_eq(rc, -1);
        ck_assert_str_eq(err.text, cases[_i].error);
    } else {
        ck_ok(rc, err);
        char *text = describe(shares, cases[_i].nlocal);
        ck_assert_str_eq(text, cases[_i].shares);
        free(text);
    }
    for (int i = 0; i < 4; i++)
        idset_finish(&shares[i].cpus);
    topo_finish(&t);
}

/* Invariants of every division: each rank has a CPU, the counts match, and with exclusive
 * policies no CPU belongs to two ranks. */
static void check_shares(enum bind_to policy, const struct topo *t, const int *near,
                         int nlocal, const struct cpu_share *shares)
{
    int used[256] = {0}, counted = 0;
    bool all_known = true;
    for (int i = 0; i < nlocal; i++) {
        const struct cpu_share *s = &shares[i];
        ck_assert_int_ge(s->ncpus, 1);
        ck_assert_int_le(s->ncpus, idset_count(&s->cpus));
        counted += s->ncpus;
        all_known = all_known && near[i] >= 0;
        for (int k = 0; k < t->npus; k++) {
            if (idset_has(&s->cpus, t->pus[k].cpu)) {
                used[t->pus[k].cpu]++;
                if (s->numa >= 0)
                    ck_assert_int_eq(t->pus[k].numa, s->numa);
            }
        }
    }
    for (int k = 0; k < t->npus && policy != BIND_NUMA && policy != BIND_SOCKET; k++)
        ck_assert_int_le(used[t->pus[k].cpu], 1);
    if (nlocal <= t->npus && policy != BIND_NUMA && policy != BIND_SOCKET)
        ck_assert_int_le(counted, t->npus);
    /* with few ranks a GPU, each is on its GPU's node */
    for (int i = 0; i < nlocal && all_known && nlocal <= t->npus / 4; i++)
        ck_assert(policy == BIND_SOCKET || shares[i].numa == near[i]);
}

LOOP_TEST(invariants_of_every_division, 6)
{
    static const int machines[][4] = {{1, 1, 2, 1}, {1, 1, 8, 2}, {2, 1, 8, 2},
                                      {2, 4, 3, 2}, {4, 2, 7, 1}, {1, 4, 16, 1}};
    static const enum bind_to policies[] = {BIND_AUTO, BIND_CORE, BIND_HWTHREAD,
                                            BIND_NUMA, BIND_SOCKET};
    const int *m = machines[_i];
    struct topo t = {0};
    int done = 0, near[80];
    machine(m[0], m[1], m[2], m[3], &t);
    for (size_t p = 0; p < ARRAY_LEN(policies); p++) {
        for (int nlocal = 1; nlocal <= 70; nlocal++) {
            struct cpu_share shares[70] = {0};
            struct ddp_err err = {""};
            for (int i = 0; i < nlocal; i++)
                near[i] = nlocal % 3 == 0 ? -1 : i % (m[0] * m[1]);
            if (cpubind(policies[p], &t, near, nlocal, shares, &err) == 0) {
                check_shares(policies[p], &t, near, nlocal, shares);
                done++;
            } else {
                ck_assert_ptr_nonnull(strstr(err.text, "--bind-to none"));
            }
            for (int i = 0; i < nlocal; i++)
                idset_finish(&shares[i].cpus);
        }
    }
    ck_assert_int_ge(done, 5);
    topo_finish(&t);
}

TEST(only_allowed_cpus_are_assigned)
{
    struct topo t = {0};
    struct idset allowed = {0};
    struct cpu_share shares[2] = {0};
    struct ddp_err err = {""};
    machine(2, 1, 4, 1, &t);
    ck_ok(idset_parse("2-3,6,100", &allowed, &err), err);
    topo_restrict(&t, &allowed);
    ck_ok(cpubind(BIND_AUTO, &t, (int[]){-1, -1}, 2, shares, &err), err);
    char *text = describe(shares, 2);
    ck_assert_str_eq(text, "2 | 3,6");
    free(text);
    idset_finish(&shares[0].cpus);
    idset_finish(&shares[1].cpus);
    idset_finish(&allowed);
    topo_finish(&t);
}

TEST(a_malformed_topology_is_rejected)
{
    static const char *const texts[] = {"", "0 0 0\n", "0 0 0 0", "x\n", "-1 0 0 0\n"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        struct topo t = {0};
        struct ddp_err err = {""};
        ck_assert_int_eq(topo_parse(texts[i], &t, &err), -1);
        ck_assert_int_eq(strncmp(err.text, "cannot bind: ", 13), 0);
    }
}

/* --- /sys and /proc, from a tree of files ------------------------------------------- */

static void put(const char *root, const char *path, const char *text)
{
    char *full = xasprintf("%s%s", root, path);
    put_file(full, text);
    free(full);
}

static const struct {
    const char *visible, *gpus;
} views[] = {
    {NULL, "0 1 2 3"}, {"0,1", "0 1"},       {"3,1", "3 1"},     {"", ""},
    {"-1", ""},        {"0,-1,2", "0"},      {"7", ""},          {"NoDevFiles", ""},
    {" 1, 2", "1 2"},  {"GPU-ab", "GPU-ab"}, {"MIG-x", "MIG-x"},
};

LOOP_TEST(gpus_as_a_program_sees_them, ARRAY_LEN(views))
{
    struct strv gpus = {0};
    char *root = temp_dir(), *text = xstrdup("");
    for (int i = 0; i < 4; i++) {
        char *path = xasprintf("/proc/driver/nvidia/gpus/0000:%d7:00.0/information", i);
        put(root, path, "");
        free(path);
        path = xasprintf("/sys/bus/pci/devices/0000:%d7:00.0/numa_node", i);
        put(root, path, i < 2 ? "0\n" : i == 2 ? "1\n" : "-1\n");
        free(path);
    }
    sysview_gpus(root, views[_i].visible, &gpus);
    for (size_t i = 0; i < gpus.n; i++) {
        char *next = xasprintf("%s%s%s", text, i ? " " : "", gpus.v[i]);
        free(text);
        text = next;
    }
    ck_assert_str_eq(text, views[_i].gpus);
    ck_assert_int_eq(sysview_gpu_numa(root, 1), 0);
    ck_assert_int_eq(sysview_gpu_numa(root, 2), 1);
    ck_assert_int_eq(sysview_gpu_numa(root, 3), -1);
    ck_assert_int_eq(sysview_gpu_numa(root, 4), -1);
    strv_finish(&gpus);
    free(text);
    free(root);
}

TEST(device_files_count_if_the_driver_is_hidden)
{
    struct strv gpus = {0};
    char *root = temp_dir();
    sysview_gpus(root, NULL, &gpus);
    ck_assert_uint_eq(gpus.n, 0);
    sysview_gpus(root, "0,1", &gpus); /* a variable alone makes no GPU */
    ck_assert_uint_eq(gpus.n, 0);
    put(root, "/dev/nvidia0", "");
    put(root, "/dev/nvidia1", "");
    put(root, "/dev/nvidia-uvm", "");
    put(root, "/dev/nvidiactl", "");
    sysview_gpus(root, NULL, &gpus);
    ck_assert_uint_eq(gpus.n, 2);
    strv_finish(&gpus);
    free(root);
}

TEST(numa_nodes_are_counted)
{
    char *root = temp_dir();
    ck_assert_int_eq(sysview_numa_nodes(root), 1);
    put(root, "/sys/devices/system/node/online", "0-3\n");
    ck_assert_int_eq(sysview_numa_nodes(root), 4);
    put(root, "/sys/devices/system/node/has_cpu", "0-1\n"); /* two hold memory only */
    ck_assert_int_eq(sysview_numa_nodes(root), 2);
    free(root);
}

TEST(this_machine_can_be_divided)
{
    struct binding b[3];
    struct ddp_err err = {""};
    struct idset cpus = {0};
    sysview_cpus(&cpus);
    ck_ok(bind_node(BIND_NONE, 3, b, &err), err);
    int sum = 0;
    for (int i = 0; i < 3; i++) {
        ck_assert_ptr_null(b[i].cpus);
        ck_assert_int_ge(b[i].ncpus, 1);
        sum += b[i].ncpus;
    }
    ck_assert_int_le(sum, idset_count(&cpus) > 3 ? (int)idset_count(&cpus) : 3);
    binding_finish(b, 3);
    ck_ok(bind_node(BIND_AUTO, 1, b, &err), err);
    ck_assert_int_le(b[0].ncpus, idset_count(&cpus));
    binding_finish(b, 1);
    idset_finish(&cpus);
}
