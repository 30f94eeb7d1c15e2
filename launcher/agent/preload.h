/* launcher/agent/preload.h - one interpreter imports, the ranks are forked from it
 *
 * Owner: the agent's ranks. The helper is the user's own command, with a folder of ours
 * in front of PYTHONPATH (launcher/preload/sitecustomize.py; protocol: doc/preload.md).
 * What is not sure is not done: every doubt, and every failure of the helper, ends in
 * preload_events.over, and the ranks that are not forked yet are started the plain way.
 */
#ifndef LAUNCHER_AGENT_PRELOAD_H
#define LAUNCHER_AGENT_PRELOAD_H

#include "common/loop.h"
#include "common/strv.h"
#include "launcher/spawn/reap.h"

#include <sched.h>
#include <stdbool.h>

struct preload;

/* Instead of modules: what the script imports first, where torch comes with it (see
 * doc/preload.md); and the same, but only told, by `over`. */
#define PRELOAD_AUTO ""
#define PRELOAD_ASK  "?"

/* Told from the loop, not from within a verb. preload_destroy() is allowed in them. */
struct preload_events {
    /* it has imported, which took so long: preload_fork() may be called */
    void (*ready)(int64_t import_ms, void *arg);
    /* `pid` is a child of ours, the leader of its process group, and waits for
     * preload_go() */
    void (*forked)(pid_t pid, void *arg);
    void (*over)(const char *why, void *arg); /* nothing more can be forked from it */
    /* with PRELOAD_ASK, in the place of `ready`: "torch, numpy"; else NULL */
    void (*would)(const char *modules, void *arg);
};

/* What it is to be. All borrowed, for the time of the call. */
struct preload_spec {
    const char *path;        /* of the program: no search */
    char *const *argv;       /* the user's own */
    const char *modules;     /* "torch,numpy"; PRELOAD_AUTO, PRELOAD_ASK */
    const struct strv *envs; /* of each rank, of this attempt and of others */
    int nenvs;
    const cpu_set_t *cpus; /* of the first rank; NULL: not bound */
    size_t cpus_size;
};

/* NULL, with the reason, where it is known at once that it cannot be done. */
struct preload *preload_create(struct loop *loop, struct reap *reap,
                               const struct preload_spec *spec,
                               const struct preload_events *events, void *arg,
                               struct ddp_err *why);
void preload_destroy(struct preload *p); /* ends the helper, and a rank that waits */

/* Ask for one rank; the answer is `forked` or `over`. `streams` become its 0, 1, 2 (-1:
 * /dev/null), `extra` its CHILD_EXTRA_FD (-1: none), and stay the caller's; `cpus` as
 * "0-7,16", NULL: ours. */
void preload_fork(struct preload *p, const int streams[3], int extra, const char *cpus,
                  const struct strv *env);
void preload_go(struct preload *p); /* the one that was forked last may run */

/* The one that was asked for last, and of which nothing was heard yet, is not wanted. */
void preload_drop(struct preload *p);
pid_t preload_pid(const struct preload *p); /* of the helper; 0: it has ended */
/* It, or its descendant, that the ranks are forked from; 0: it has ended, or is not ready. */
pid_t preload_importer(const struct preload *p);

/* Does its name or its first line say so? Cheap. */
bool preload_is_python(const char *path);

/* Is this a command whose Python would import our folder? -1: no, and why. */
int preload_fits(const char *path, char *const *argv, struct ddp_err *why);

/* What all of `envs` agree on, and the names of the others, joined by commas, "?NAME" where
 * some have none. -1 where they differ in what libraries read while they load. */
int preload_common(const struct strv *envs, int n, struct strv *common, char **apart,
                   struct ddp_err *why);

#endif
