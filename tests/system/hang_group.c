/* A job with libddpgroup in which rank 1 does not come to the fourth all_reduce. */
#include "include/ddprun/group.h"

#include <stdio.h>
#include <unistd.h>

static void load(void)
{
    for (;;)
        pause();
}

int main(void)
{
    struct ddp_err err;
    float x[1000] = {0};
    struct ddp_group *g = ddp_group_init(NULL, &err);
    int rc = g ? 0 : -1;
    for (int i = 0; rc == 0 && i < 3; i++)
        rc = ddp_all_reduce(g, x, 1000, DDP_F32, DDP_SUM, &err);
    if (rc < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    puts("up");
    fflush(stdout);
    if (ddp_group_rank(g) == 1)
        load();
    return ddp_all_reduce(g, x, 1000, DDP_F32, DDP_SUM, &err) < 0;
}
