/* A rank under mpirun or mpiexec: two groups meet by the launcher, and a forked child
 * ends. */
#include "include/ddprun/group.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
    struct ddp_err err;
    int sum = 0, status;
    for (int i = 0; i < 2; i++) {
        struct ddp_group *g = ddp_group_init(
            &(struct ddp_group_options){.size = 0, .rank = -1, .timeout_ms = 30000},
            &err);
        int one = 1;
        if (!g || ddp_all_reduce(g, &one, 1, DDP_I32, DDP_SUM, &err) < 0)
            return fprintf(stderr, "%s\n", err.text), 1;
        sum += one;
        ddp_group_destroy(g);
    }
    pid_t child = fork();
    if (child == 0)
        exit(0);
    if (waitpid(child, &status, 0) != child || status != 0)
        return 2;
    printf("sum %d\n", sum);
    return 0;
}
