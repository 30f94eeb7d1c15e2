/* tests/worker/meet.h - ranks that meet without a store, in tests */
#ifndef TESTS_WORKER_MEET_H
#define TESTS_WORKER_MEET_H

#include "tests/worker/team.h"

#include "common/mem.h"
#include "common/sock.h"

#include <check.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* For assert_team(): a sum, then another group of the same ranks at the place `arg`. */
static inline void meet_and_sum(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int x = ddp_group_rank(g), size = ddp_group_size(g);
    team_ok(g, ddp_all_reduce(g, &x, 1, DDP_I32, DDP_SUM, &err));
    team_assert(g, x == size * (size - 1) / 2, "sum %d", x);
    const char *url = arg;
    struct ddp_group_options o = {
        .rank = ddp_group_rank(g), .size = size, .timeout_ms = INT64_MAX, .meeting = url};
    struct ddp_group *second = ddp_group_init(&o, &err); /* at the same place */
    team_assert(g, second, "%s", err.text);
    team_ok(g, ddp_barrier(second, &err));
    ddp_group_destroy(second);
}

/* An address at which nothing listens. */
static inline void meet_url(char *url, size_t size)
{
    struct ddp_err err;
    int port, fd = sock_listen("127.0.0.1", 0, &port, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    close(fd);
    snprintf(url, size, "tcp://127.0.0.1:%d", port);
}

/* In a process of its own: it may wait, and it must not keep locks. */
static inline void meet_alone(const struct ddp_group_options *o, struct ddp_err *err)
{
    int fds[2], status;
    ck_assert_int_eq(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct ddp_err mine = {""};
        struct ddp_group *g = ddp_group_init(o, &mine);
        ddp_group_destroy(g);
        _exit(write(fds[1], &mine, sizeof mine) != sizeof mine || g != NULL);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(read(fds[0], err, sizeof *err), sizeof *err);
    close(fds[0]);
    close(fds[1]);
}

#endif
