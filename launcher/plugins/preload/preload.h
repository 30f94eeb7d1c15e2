/* launcher/plugins/preload/preload.h - fork ranks from one interpreter that has done the
 * imports
 *
 * Owner: the agent's ranks. The helper is the user's own command with ddprun's directory
 * first in PYTHONPATH (launcher/preload/sitecustomize.py; protocol: doc/preload.md).
 * Any doubt and any failure of the helper leads to preload_events.over, and the ranks
 * that are not forked yet are started normally.
 */
#ifndef LAUNCHER_PLUGINS_PRELOAD_PRELOAD_H
#define LAUNCHER_PLUGINS_PRELOAD_PRELOAD_H

#include "common/loop.h"
#include "common/strv.h"
#include "launcher/transport/reap.h"

#include <sched.h>
#include <stdbool.h>

struct preload;

/* In place of modules. AUTO: the imports at the script's beginning, if torch is among
 * them (see doc/preload.md). ASK: only report these, by `would` or `over`. */
#define PRELOAD_AUTO ""
#define PRELOAD_ASK  "?"

/* Called from the loop, never from within a preload_*() call. They may call
 * preload_destroy(). */
struct preload_events {
    /* the imports are done: preload_fork() may be called */
    void (*ready)(int64_t import_ms, void *arg);
    /* `pid`, our child and the leader of its process group, waits for preload_go() */
    void (*forked)(pid_t pid, void *arg);
    void (*over)(const char *why, void *arg); /* the helper can fork no more ranks */
    /* with PRELOAD_ASK, in place of `ready`: "torch, numpy"; otherwise NULL */
    void (*would)(const char *modules, void *arg);
};

/* Parameters of the helper. All borrowed, for the time of the call. */
struct preload_spec {
    const char *path;        /* of the program; PATH is not searched */
    char *const *argv;       /* the user's own */
    const char *modules;     /* "torch,numpy"; PRELOAD_AUTO, PRELOAD_ASK */
    const struct strv *envs; /* of each rank, in this attempt and later ones */
    int nenvs;
    const cpu_set_t *cpus; /* of the first rank; NULL: not bound */
    size_t cpus_size;
};

/* NULL, with the reason, if it is known at once that preloading is impossible; what
 * depends on files is found out in a thread. */
struct preload *preload_create(struct loop *loop, struct reap *reap,
                               const struct preload_spec *spec,
                               const struct preload_events *events, void *arg,
                               struct ddp_err *why);
void preload_destroy(struct preload *p); /* kills the helper; a rank that waits exits */

/* Request one rank; `forked` or `over` follows. `streams` become its descriptors 0, 1, 2
 * (-1: /dev/null), `extra` its CHILD_EXTRA_FD (-1: none); the caller keeps ownership of
 * them. `cpus` as "0-7,16"; NULL: not changed. */
void preload_fork(struct preload *p, const int streams[3], int extra, const char *cpus,
                  const struct strv *env);
void preload_go(struct preload *p); /* let the last forked rank run */

/* Cancel the last request, which has not been answered yet. */
void preload_drop(struct preload *p);
pid_t preload_pid(const struct preload *p); /* of the helper; 0: exited */

/* Whether the file is Python by its name or its first line. Cheap. */
bool preload_is_python(const char *path);

/* What a command has Python run. */
struct preload_script {
    size_t at;   /* its word in argv; 0: the program is the script itself */
    char option; /* 'c': its text, 'm': a module, '\0': a file */
};

/* 0 if the command is a Python that would import sitecustomize from our directory; -1:
 * no, with the reason. */
int preload_fits(const char *path, char *const *argv, struct preload_script *script,
                 struct ddp_err *why);

/* -1, with the reason, if the script is no regular file, or its text shows that it
 * imports neither torch nor a package that may require it. Of a command that fits. */
int preload_script_fits(const char *path, char *const *argv,
                        const struct preload_script *is, struct ddp_err *why);

/* The file in which the helper records for a day that no rank can be forked; malloc'ed,
 * NULL: the user has no folder for it. Depends on the ranks' directory, which is ours. */
char *preload_record(const struct preload_spec *spec, const struct preload_script *is,
                     const struct strv *common, const char *apart);

/* -1, with the reason, if that was recorded, and no file that it names has changed. */
int preload_known(const char *record, struct ddp_err *why);

/* `common`: the variables that are equal in all of `envs`; `apart`: the names of the
 * others, comma-separated, "?NAME" if some lack it. -1 if they differ in a variable that
 * libraries read while loading. */
int preload_common(const struct strv *envs, int n, struct strv *common, char **apart,
                   struct ddp_err *why);

#endif
