/* hang_group [TIMEOUT_MS|init]: a job with libddpgroup in which rank 1 does not come to
 * the fourth all_reduce, or not to ddp_group_init(). */
#include "include/ddprun/group.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void load(void)
{
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    struct ddp_err err;
    float x[1000] = {0};
    bool init = argc > 1 && strcmp(argv[1], "init") == 0;
    if (init && strcmp(getenv("RANK"), "1") == 0)
        load();
    struct ddp_group *g = ddp_group_init(NULL, &err);
    int rc = g ? 0 : -1;
    for (int i = 0; rc == 0 && i < 3; i++)
        rc = ddp_all_reduce(g, x, 1000, DDP_F32, DDP_SUM, &err);
    if (rc < 0) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    if (argc > 1)
        ddp_group_set_timeout(g, atol(argv[1]));
    puts("up");
    fflush(stdout);
    if (ddp_group_rank(g) == 1)
        load();
    rc = ddp_all_reduce(g, x, 1000, DDP_F32, DDP_SUM, &err);
    if (rc < 0)
        fprintf(stderr, "%s\n", err.text);
    return rc < 0;
}
