/* launcher/transport/transport_proc.h - a process that starts an agent on a host, or on
 * many
 *
 * An ssh, a qrsh, an srun. It gets its input (the bootstrap lines) on stdin, which then
 * stays open: EOF ends the agents. Its stderr is passed on line by line, and the last
 * part of it kept. Its stdout is output of shell start-up files and discarded, until an
 * agent prints TRANSPORT_PROC_LINK: it cannot connect to us and uses stdin and stdout as
 * its link.
 *
 * Owner: the node starter.
 */
#ifndef LAUNCHER_TRANSPORT_TRANSPORT_PROC_H
#define LAUNCHER_TRANSPORT_TRANSPORT_PROC_H

#include "launcher/transport/reap.h"

#include <stdbool.h>

struct package;

/* All borrowed for the time of the call. */
struct transport_proc_spec {
    const char *path; /* of the program; PATH is not searched */
    char *const *argv, *const *env;
    const char *input;             /* written to its stdin; NULL: stdin is /dev/null */
    const struct package *package; /* sent first if it requests it; NULL: none, and the
                                      input is sent at once. Only if it talks. */
    bool talks; /* stdin and stdout are one socket: see TRANSPORT_PROC_LINK */
};

struct transport_proc_events {
    void (*line)(const char *line, void *arg);
    /* The agent uses `fd`, the callee's, as link and lifeline. NULL unless it talks. */
    void (*linked)(int fd, void *arg);
    /* It has ended and every line has been delivered. The callee may destroy it. */
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
/* Kills a process that still runs. */
void transport_proc_destroy(struct transport_proc *c);

void transport_proc_close_stdin(struct transport_proc *c); /* EOF on its stdin */
void transport_proc_signal(struct transport_proc *c, int sig);
pid_t transport_proc_pid(const struct transport_proc *c); /* 0: it has ended */
/* The last 4 KiB of its stderr: borrowed. */
const char *transport_proc_stderr(const struct transport_proc *c);

#endif
