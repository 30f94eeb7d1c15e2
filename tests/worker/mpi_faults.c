/* tests/worker/mpi_faults.c - ranks under mpirun or mpiexec, with groups of the mpi
 * backend (run by mpi_backend.py): `disagree` calls different things, and before that a
 * rank leaves early; `die N` ends rank 1 before the N-th call. Every rank that lives says
 * what it was told. */
#include "include/ddprun/group.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { ODD = 1, COUNT = 1000, MAX = 8, TIMEOUT_MS = 60000, SOON_MS = 20000 };

static struct ddp_err err;
static float a[COUNT * MAX], b[COUNT * MAX];

#define CALL(name, ...)                  \
    static int name(struct ddp_group *g) \
    {                                    \
        return __VA_ARGS__;              \
    }

CALL(barrier, ddp_barrier(g, &err))
CALL(broadcast, ddp_broadcast(g, a, 64, DDP_F32, 0, &err))
CALL(all_reduce, ddp_all_reduce(g, a, 64, DDP_F32, DDP_SUM, &err))
CALL(all_gather, ddp_all_gather(g, a, b, 64, DDP_F32, &err))
CALL(reduce_scatter, ddp_reduce_scatter(g, a, b, 64, DDP_F32, DDP_MAX, &err))
CALL(all_to_all, ddp_all_to_all(g, a, b, 10, DDP_F32, &err))
CALL(split, ddp_group_split(g, 0, 0, &(struct ddp_group *){NULL}, &err))

static int (*const calls[])(struct ddp_group *g) = {
    all_reduce, barrier, all_gather, all_to_all, reduce_scatter, split, all_reduce};

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The error, and that every later call fails. */
static int told(struct ddp_group *g, int rc, int64_t began, const char *what)
{
    struct ddp_err again = {""};
    int took = (int)(now() - began), bad = rc == 0 || took > SOON_MS;
    bad |= ddp_barrier(g, &again) == 0 || strcmp(again.text, err.text) != 0;
    printf("%s: rank %d: %s%s (after %d ms)\n", what, ddp_group_rank(g),
           bad ? "BAD: " : "", err.text, took);
    fflush(stdout);
    return bad;
}

/* Rank 1 sends a message and leaves, while the root still waits for somebody else in
 * MPI; the message is there all the same. */
static int leave_a_message(struct ddp_group *g)
{
    enum { ROOT = 0, SLOW = 2, TAG = 7, SLOW_US = 400000 };
    int rank = ddp_group_rank(g), x = rank == ODD ? 42 : 0, rc = 0;
    struct ddp_group *sub = NULL;
    if (ddp_group_split(g, 0, 0, &sub, &err) < 0)
        return -1;
    if (rank == ODD)
        rc = ddp_send(sub, &x, sizeof x, ROOT, TAG, &err);
    if (rank == SLOW)
        usleep(SLOW_US);
    if (rc == 0)
        rc = ddp_reduce(sub, a, b, 1, DDP_F32, DDP_SUM, ROOT, &err);
    if (rc == 0 && rank == ROOT)
        rc = ddp_recv(sub, &x, sizeof x, ODD, TAG, &err);
    ddp_group_destroy(sub);
    if (rc < 0 || (rank == ROOT && x != 42))
        printf("disagree: rank %d: BAD: message %d: %s\n", rank, x, err.text);
    return rc;
}

static int disagree(struct ddp_group *g)
{
    static const struct {
        int (*others)(struct ddp_group *g), (*odd)(struct ddp_group *g);
    } pairs[] = {
        {all_reduce, all_gather}, {barrier, all_reduce}, {all_to_all, broadcast}};
    int rank = ddp_group_rank(g), all[MAX], bad = leave_a_message(g);
    for (int i = 0; i < ddp_group_size(g); i++)
        all[i] = i;
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs && !bad; i++) {
        struct ddp_group *sub = ddp_group_sub(g, all, ddp_group_size(g), &err);
        if (!sub)
            return 1;
        int64_t began = now();
        int rc = (rank == ODD ? pairs[i].odd : pairs[i].others)(sub);
        while (rc == 0 && now() - began < SOON_MS) /* it may end alone: the next tells */
            rc = ddp_barrier(sub, &err);
        bad = told(sub, rc, began, "disagree");
        ddp_group_destroy(sub);
    }
    /* the launcher may end all of them when the first has ended */
    return ddp_barrier(g, &err) < 0 || bad;
}

static int die(struct ddp_group *g, size_t at)
{
    int rc = 0;
    int64_t began = now();
    for (size_t i = 0; i < sizeof calls / sizeof *calls && rc == 0; i++) {
        if (i == at && ddp_group_rank(g) == ODD)
            raise(SIGKILL);
        rc = calls[i](g);
    }
    return told(g, rc, began, "die");
}

int main(int argc, char **argv)
{
    struct ddp_group_options o = {.rank = -1, .timeout_ms = TIMEOUT_MS, .backend = "mpi"};
    /* the launcher may end the others for it; here they shall come to tell */
    signal(SIGTERM, SIG_IGN);
    signal(SIGUSR1, SIG_IGN); /* Hydra: some process has died */
    struct ddp_group *g = ddp_group_init(&o, &err);
    if (!g || argc < 2) {
        fprintf(stderr, "init: %s\n", err.text);
        return 1;
    }
    int bad = argc > 2 ? die(g, (size_t)atoi(argv[2])) : disagree(g);
    ddp_group_destroy(g);
    return bad;
}
