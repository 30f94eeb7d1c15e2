/* bench/hello/ddp.c - start, exchange, barrier, exit: with our group library
 *
 * With a number of ms as its argument it stays that long, to be looked at. */
#include "include/ddprun/group.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int failed(const struct ddp_err *err)
{
    fprintf(stderr, "%s\n", err->text);
    return 1;
}

int main(int argc, char **argv)
{
    struct ddp_err err;
    struct ddp_group *g = ddp_group_init(NULL, &err);
    if (!g)
        return failed(&err);
    int size = ddp_group_size(g);
    int64_t own = ddp_group_rank(g), *all = calloc((size_t)size, sizeof *all);
    if (!all || ddp_all_gather(g, &own, all, 1, DDP_I64, &err) < 0 ||
        ddp_barrier(g, &err) < 0)
        return failed(&err);
    for (int r = 0; r < size; r++) {
        if (all[r] != r)
            return 2;
    }
    if (argc > 1)
        usleep((useconds_t)atoi(argv[1]) * 1000);
    free(all);
    ddp_group_destroy(g);
    return 0;
}
