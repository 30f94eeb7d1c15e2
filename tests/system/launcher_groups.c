/* A rank under mpirun or mpiexec: two groups meet by the launcher, and a forked child
 * ends. With an argument the launcher is stopped when the second would meet. */
#include "include/ddprun/group.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static struct ddp_err err;

static struct ddp_group *meet(int64_t timeout_ms)
{
    return ddp_group_init(
        &(struct ddp_group_options){.rank = -1, .timeout_ms = timeout_ms}, &err);
}

static int failed(void)
{
    fprintf(stderr, "%s\n", err.text);
    return 1;
}

static int meet_while_stopped(struct ddp_group *first)
{
    if (ddp_group_rank(first) == 0)
        kill(getppid(), SIGSTOP);
    if (ddp_barrier(first, &err) < 0)
        return failed();
    puts(meet(1000) ? "met" : err.text);
    if (ddp_barrier(first, &err) < 0)
        return failed();
    if (ddp_group_rank(first) == 0)
        kill(getppid(), SIGCONT);
    return 0;
}

int main(int argc, char **argv)
{
    struct ddp_group *groups[2];
    int sum = 0, status;
    for (int i = 0; i < 2; i++) {
        int one = 1;
        groups[i] = meet(30000);
        if (!groups[i] || ddp_all_reduce(groups[i], &one, 1, DDP_I32, DDP_SUM, &err) < 0)
            return failed();
        sum += one;
        if (argc > 1)
            return meet_while_stopped(groups[0]);
    }
    pid_t child = fork();
    if (child == 0)
        exit(0);
    if (waitpid(child, &status, 0) != child || status != 0)
        return 2;
    printf("sum %d\n", sum);
    ddp_group_destroy(groups[1]);
    ddp_group_destroy(groups[0]);
    return 0;
}
