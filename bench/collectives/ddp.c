/* bench/collectives/ddp.c - our process group; arguments: arena|private, then sizes */
#include "bench/collectives/contest.h"
#include "include/ddprun/group.h"

#include <string.h>

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

int main(int argc, char **argv)
{
    enum { ROOM = 32 << 20 };
    const char *rank = getenv("RANK"), *backend = getenv("BENCH_BACKEND");
    contest_pin(rank ? atoi(rank) : 0);
    g = ddp_group_init(&(struct ddp_group_options){.rank = -1, .backend = backend}, &err);
    check(g ? 0 : -1);
    struct contestant c = {.rank = ddp_group_rank(g),
                           .size = ddp_group_size(g),
                           .all_reduce = all_reduce,
                           .barrier = barrier};
    c.data = argc > 1 && strcmp(argv[1], "arena") == 0 ? ddp_arena_alloc(g, ROOM, &err)
                                                       : aligned_alloc(64, ROOM);
    check(c.data ? 0 : -1);
    contest_run(&c, argc - 2, argv + 2);
    ddp_group_destroy(g);
    return 0;
}
