/* tests/worker/team.h - a process group of forked ranks, for tests
 *
 * Each rank is a forked process with the variables a launcher would set; the bootstrap
 * uses a store server that the test program runs. Several hosts are simulated: the
 * layout "aab" puts ranks 0 and 1 on one host and rank 2 on another.
 */
#ifndef TESTS_WORKER_TEAM_H
#define TESTS_WORKER_TEAM_H

#include "include/ddprun/group.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct team {
    int size;
    const char *layout;  /* a letter per rank, or NULL: one host */
    const char *backend; /* as in ddp_group_options */
    const char *meeting; /* likewise */
    int64_t timeout_ms;  /* of the group; 0: 60 s */
    int expect_dead;     /* 1 + a rank that a signal kills */
};

/* One host of 1 to 8 ranks, 2 to 8 hosts of one, and hosts of several ranks. */
enum { TEAM_LAYOUTS = 20 };
extern const struct team team_layouts[TEAM_LAYOUTS];

/* Runs `fn` in every rank and fails the test unless all exit with 0 in time. `fn` uses
 * team_assert(): Check's own assertions belong to the parent. */
void assert_team(const struct team *team,
                 void (*fn)(struct ddp_group *g, const void *arg), const void *arg);

/* The same for `n` teams (at most 8) at once, where they mostly wait; `args` has an
 * argument for each, or is NULL. */
void assert_teams(const struct team *teams, size_t n,
                  void (*fn)(struct ddp_group *g, const void *arg),
                  const void *const *args);

/* A child stops the calling process after `after_ms`, for `ms`. */
void team_stop(int64_t after_ms, int64_t ms);

/* Zeroed memory that the ranks of a test share with it. */
void *team_shared(size_t bytes);

/* Starts a store's server on a port of its own, which ends with this process at the
 * latest. */
pid_t team_server(int *port);

/* A function that makes one call, for tables of calls. */
#define TEAM_CALL(name, ...)                                  \
    static int name(struct ddp_group *g, struct ddp_err *err) \
    {                                                         \
        return __VA_ARGS__;                                   \
    }

/* A failure is reported within a second where there are enough CPUs. Three are asserted,
 * besides the time in which processes of this machine waited for a CPU; 20 at the most,
 * as the deadline of the groups is 60 s. */
struct team_watch {
    int64_t at_ms, contended_ms;
};
struct team_watch team_watch(void);
bool team_is_soon(struct team_watch since);

/* In a rank: exit with a message on stderr unless `ok`. */
#define team_assert(g, ok, ...)                            \
    do {                                                   \
        if (!(ok))                                         \
            team_fail(g, __FILE__, __LINE__, __VA_ARGS__); \
    } while (0)
/* The same of a call that has returned `rc` and its error in `err`. */
#define team_ok(g, rc) team_assert(g, (rc) == 0, "%s", err.text)
void team_fail(struct ddp_group *g, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 4, 5), noreturn));

#endif
