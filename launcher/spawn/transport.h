/* launcher/spawn/transport.h - the ways to get an agent onto another host
 *
 * A scheduler has a way of its own, which puts what it starts under its limits, its
 * accounting and its end; ssh goes everywhere. One file and one row of the table in
 * transport.c each.
 */
#ifndef LAUNCHER_SPAWN_TRANSPORT_H
#define LAUNCHER_SPAWN_TRANSPORT_H

#include "common/strv.h"
#include "include/ddprun/err.h"
#include "launcher/link/message.h"
#include "launcher/opts.h"

#include <stdbool.h>

struct diagnosis;

/* What a line on the stderr of a process that starts several hosts says about them. */
struct blame {
    char *hosts;    /* owned: a host list */
    char text[400]; /* why they do not start, without a name */
    bool sure;      /* false: a line that tells it better may follow */
};

struct transport {
    const char *name;    /* as --start has it */
    const char *program; /* that is run, looked for in PATH; NULL: --ssh says */
    const char *source;  /* the allocation whose own way it is; NULL: none's */
    bool at_once;        /* one process for all hosts, our own among them */
    bool tree;           /* whoever has been started so can start others so */
    bool by_file;        /* it carries no stdin: the summons lie in a file */
    bool talks;          /* what an agent writes to its stdout comes out at its own */
    bool lifeline;       /* the end of its stdin reaches the agent, and nothing else does
                          * end that stdin while the job runs */
    /* The arguments to start agents on `nodes`; one, unless it is at_once. */
    void (*command)(const struct msg_hosts *hosts, const unsigned *nodes, size_t n,
                    struct strv *argv);
    /* Its environment, made of ours; NULL: ours. */
    void (*environment)(char *const *ours, struct strv *env);
    /* For at_once: which of several processes is to start this host. NULL: one does. */
    unsigned (*part)(const char *host);
    /* For at_once: does this line of its stderr blame a host? Fills `b`. */
    bool (*blame)(const char *line, const char *agent, struct blame *b);
    /* It has ended with wait status `status` before the agent of `host` has called;
     * `said` is the end of its stderr. */
    void (*diagnose)(const struct host *host, const char *agent, const char *said,
                     int status, struct diagnosis *d);
};

/* part() is below. */
enum { TRANSPORT_PARTS = 128 };

extern const struct transport transport_ssh, transport_srun, transport_qrsh,
    transport_blaunch, transport_tmrsh;

/* The way to start on hosts that come from `source` (struct alloc), and in `why` the
 * reason, for --dry-run. NULL with `err` when --start asks for what is not there. */
const struct transport *transport_choose(enum start_by asked, const char *source,
                                         char *why, size_t size, struct ddp_err *err);

/* Its program, as found in PATH: malloc'ed, NULL with `err`. `ssh` as in msg_hosts. */
char *transport_program(const struct transport *t, const char *ssh, struct ddp_err *err);

/* In an agent that srun has started: forget what was set for that srun only. */
void srun_unset_settings(void);

#endif
