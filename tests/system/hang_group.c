/* hang_group [TIMEOUT_MS|init|message]: a job with libddpgroup in which rank 1 does not
 * come to the fourth all_reduce, or not to ddp_group_init(); or one in which the ranks of
 * a group wait for messages of each other, in the reverse order. */
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

static int receive(struct ddp_group *g, struct ddp_err *err)
{
    const int reverse[] = {2, 1, 0};
    struct ddp_group *sub = ddp_group_sub(g, reverse, 3, err);
    char byte;
    return sub ? ddp_recv(sub, &byte, 1, (ddp_group_rank(sub) + 1) % 3, 7, err) : -1;
}

int main(int argc, char **argv)
{
    struct ddp_err err;
    float x[1000] = {0};
    bool message = argc > 1 && strcmp(argv[1], "message") == 0;
    bool init = argc > 1 && strcmp(argv[1], "init") == 0;
    if (init && strcmp(getenv("RANK"), "1") == 0)
        load();
    struct ddp_group *g = ddp_group_init(NULL, &err);
    int rc = g ? 0 : -1;
    for (int i = 0; rc == 0 && i < 3; i++)
        rc = ddp_all_reduce(g, x, 1000, DDP_F32, DDP_SUM, &err);
    if (rc == 0 && message)
        rc = receive(g, &err);
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
