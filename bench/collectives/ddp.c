/* bench/collectives/ddp.c - our process group; arguments: arena|private, and the
 * contest's */
#include "bench/collectives/contest.h"
#include "include/ddprun/group.h"

static struct ddp_group *g;
static struct ddp_err err;

static void check(int rc)
{
    if (rc < 0) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
}

static void all_reduce(float *data, size_t count)
{
    check(ddp_all_reduce(g, data, count, DDP_F32, DDP_SUM, &err));
}

static void barrier(void)
{
    check(ddp_barrier(g, &err));
}

static void send_all(void *data, size_t bytes, int n)
{
    struct ddp_request *r[CONTEST_WINDOW];
    int to = !ddp_group_rank(g);
    if (n == 1) {
        check(ddp_send(g, data, bytes, to, 0, &err));
        return;
    }
    for (int i = 0; i < n; i++)
        check((r[i] = ddp_isend(g, data, bytes, to, 0, &err)) ? 0 : -1);
    for (int i = 0; i < n; i++)
        check(ddp_wait(r[i], &err));
}

static void recv_all(void *data, size_t bytes, int n)
{
    struct ddp_request *r[CONTEST_WINDOW];
    int from = !ddp_group_rank(g);
    if (n == 1) {
        check(ddp_recv(g, data, bytes, from, 0, &err));
        return;
    }
    for (int i = 0; i < n; i++)
        check((r[i] = ddp_irecv(g, data, bytes, from, 0, &err)) ? 0 : -1);
    for (int i = 0; i < n; i++)
        check(ddp_wait(r[i], &err));
}

int main(int argc, char **argv)
{
    const char *rank = getenv("RANK"), *backend = getenv("BENCH_BACKEND");
    contest_pin(rank ? atoi(rank) : 0);
    g = ddp_group_init(&(struct ddp_group_options){.rank = -1, .backend = backend}, &err);
    check(g ? 0 : -1);
    struct contestant c = {.rank = ddp_group_rank(g),
                           .size = ddp_group_size(g),
                           .all_reduce = all_reduce,
                           .barrier = barrier,
                           .send = send_all,
                           .recv = recv_all};
    c.data = argc > 1 && strcmp(argv[1], "arena") == 0
                 ? ddp_arena_alloc(g, CONTEST_ROOM, &err)
                 : aligned_alloc(64, CONTEST_ROOM);
    check(c.data ? 0 : -1);
    contest_run(&c, argc - 2, argv + 2);
    ddp_group_destroy(g);
    return 0;
}
