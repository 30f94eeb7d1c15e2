/* tests/worker/mpi_group.c - a rank under mpirun or mpiexec: the mpi backend's results
 * are those of the group that needs no MPI (run by mpi_backend.py) */
#include "include/ddprun/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 3001, MAX = 8 };

static struct ddp_err err;

static void check(int ok, const char *what)
{
    if (!ok) {
        fprintf(stderr, "%s: %s\n", what, err.text);
        exit(1);
    }
}

static int64_t give(int rank, size_t i)
{
    return (int64_t)((i * 7 + (size_t)rank * 3) % 11) - 3;
}

static void fill(void *x, size_t n, int rank, enum ddp_type type)
{
    for (size_t i = 0; i < n; i++) {
        if (type == DDP_F32)
            ((float *)x)[i] = (float)give(rank, i);
        else if (type == DDP_I64)
            ((int64_t *)x)[i] = give(rank, i);
        else /* bf16: small whole numbers are the upper half of a float */
            memcpy((char *)x + 2 * i, (char *)(float[]){(float)give(rank, i)} + 2, 2);
    }
}

/* The same calls on both groups: the same bytes. */
static void both(struct ddp_group *mpi, struct ddp_group *ours, enum ddp_type type,
                 size_t bytes)
{
    int rank = ddp_group_rank(mpi), size = ddp_group_size(mpi), last = size - 1;
    size_t counts[MAX], all = 0, room = COUNT * MAX * bytes;
    char *a = malloc(room), *b[2] = {malloc(room), malloc(room)};
    for (int r = 0; r < size; r++)
        all += counts[r] = r % 3 == 1 ? 0 : COUNT / (size_t)(r + 1);
    for (enum ddp_op op = DDP_SUM; op <= DDP_BXOR; op++) {
        if (op >= DDP_BAND && type != DDP_I64)
            continue;
        for (int k = 0; k < 2; k++) {
            struct ddp_group *g = k ? ours : mpi;
            memset(b[k], 0, room);
            fill(b[k], COUNT, rank, type);
            check(ddp_all_reduce(g, b[k], COUNT, type, op, &err) == 0, "all_reduce");
            char *at = b[k] + COUNT * bytes;
            fill(a, all, rank, type);
            check(ddp_reduce_scatterv(g, a, at, counts, type, op, &err) == 0, "scatter");
            at += COUNT * bytes;
            check(ddp_reduce(g, a, at, COUNT / 2, type, op, last, &err) == 0, "reduce");
        }
        check(memcmp(b[0], b[1], room) == 0, "other numbers");
    }
    for (int k = 0; k < 2; k++) {
        struct ddp_group *g = k ? ours : mpi;
        char *at = b[k];
        memset(at, 0, room);
        fill(a, COUNT, rank, type);
        struct ddp_request *r = ddp_iall_gatherv(g, a, at, counts, type, &err);
        check(r && ddp_wait(r, &err) == 0, "all_gatherv");
        check(ddp_gather(g, a, at += all * bytes, 11, type, 0, &err) == 0, "gather");
        at += 11 * MAX * bytes;
        check(ddp_scatterv(g, a, counts, at, counts[rank], type, 0, &err) == 0,
              "scatterv");
        check(ddp_all_to_all(g, a, at += COUNT * bytes, 13, type, &err) == 0,
              "all_to_all");
        check(ddp_broadcast(g, a, COUNT, type, last, &err) == 0, "broadcast");
        memcpy(at + 13 * MAX * bytes, a, COUNT * bytes);
    }
    check(memcmp(b[0], b[1], room) == 0, "other bytes");
    free(a);
    free(b[0]);
    free(b[1]);
}

int main(int argc, char **argv)
{
    struct ddp_group_options o = {.rank = -1, .timeout_ms = 60000, .backend = "mpi"};
    struct ddp_group *mpi = ddp_group_init(&o, &err), *half;
    check(mpi != NULL, "init");
    o = (struct ddp_group_options){.rank = ddp_group_rank(mpi),
                                   .size = ddp_group_size(mpi),
                                   .timeout_ms = 60000,
                                   .meeting = argv[1]};
    struct ddp_group *ours = ddp_group_init(&o, &err);
    check(ours != NULL, "ours");
    both(mpi, ours, DDP_F32, 4);
    both(mpi, ours, DDP_I64, 8);
    both(mpi, ours, DDP_BF16, 2);
    int one = 1, token = o.rank;
    check(ddp_group_split(mpi, o.rank % 2, 0, &half, &err) == 0, "split");
    check(ddp_all_reduce(half, &one, 1, DDP_I32, DDP_SUM, &err) == 0, "half");
    check(one == ddp_group_size(half), "another half");
    struct ddp_request *out =
        ddp_isend(mpi, &o.rank, sizeof(int), (o.rank + 1) % o.size, 3, &err);
    check(out && ddp_recv(mpi, &token, sizeof token, (o.rank + o.size - 1) % o.size, 3,
                          &err) == 0,
          "message");
    check(ddp_wait(out, &err) == 0 && token == (o.rank + o.size - 1) % o.size, "token");
    check(ddp_barrier(mpi, &err) == 0, "barrier");
    pid_t child = fork();
    if (child == 0)
        exit(0);
    check(waitpid(child, &one, 0) == child && one == 0, "a forked child");
    if (o.rank == 0)
        printf("%d ranks of %s\n", o.size, ddp_group_backend(mpi));
    ddp_group_destroy(half);
    ddp_group_destroy(ours);
    ddp_group_destroy(mpi);
    return 0;
}
