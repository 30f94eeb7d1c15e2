/* launcher/spawn/transport_proc.h - the process that brings an agent to a host, or many
 * to theirs
 *
 * An ssh, a qrsh, an srun. It is handed words on its stdin, which then stays open: its
 * end is the end for what was carried. What it says on stderr is told line by line, and
 * the last of it kept. What it says on stdout is whatever start-up files of shells write
 * there, and thrown away, until an agent says TRANSPORT_PROC_LINK: it cannot call us, and
 * speaks from then on over stdin and stdout.
 *
 * Owner: the starter.
 */
#ifndef LAUNCHER_SPAWN_TRANSPORT_PROC_H
#define LAUNCHER_SPAWN_TRANSPORT_PROC_H

#include "launcher/spawn/reap.h"

#include <stdbool.h>

struct package;

/* All borrowed for the time of the call. */
struct transport_proc_spec {
    const char *path; /* of the program: no search */
    char *const *argv, *const *env;
    const char *words;             /* for its stdin; NULL: that is /dev/null */
    const struct package *package; /* sent first, if it asks; NULL: there is none, and it
                                    * gets its words at once. Only if it talks. */
    bool talks; /* its stdin and stdout are one socket: see TRANSPORT_PROC_LINK */
};

struct transport_proc_events {
    void (*said)(const char *line, void *arg);
    /* The agent wants its link over `fd`, which is the callee's to own; it is the
     * lifeline, too. May be NULL unless it talks. */
    void (*linked)(int fd, void *arg);
    /* It has ended, and every line it said has been told. The callee may destroy it. */
    void (*ended)(int status, void *arg);
};

/* On a line of its own. */
#define TRANSPORT_PROC_LINK "\nddprun-agent: link over stdio\n"

struct transport_proc;

/* NULL with errno when the process cannot be made. */
struct transport_proc *transport_proc_create(struct loop *loop, struct reap *reap,
                                             const struct transport_proc_spec *spec,
                                             const struct transport_proc_events *events,
                                             void *arg);
/* One that still runs is killed. */
void transport_proc_destroy(struct transport_proc *c);

void transport_proc_let_go(struct transport_proc *c); /* its stdin ends */
void transport_proc_signal(struct transport_proc *c, int sig);
pid_t transport_proc_pid(const struct transport_proc *c); /* 0: it has ended */
const char *
transport_proc_said(const struct transport_proc *c); /* the last 4 KiB: borrowed */

#endif
