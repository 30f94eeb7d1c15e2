/* launcher/transport/transport.h - ways to start an agent on another host
 *
 * A scheduler has its own launcher, which puts processes under its limits, its accounting
 * and its clean-up; ssh works everywhere. Each is one file and one row of the table in
 * transport.c.
 */
#ifndef LAUNCHER_TRANSPORT_TRANSPORT_H
#define LAUNCHER_TRANSPORT_TRANSPORT_H

#include "common/strv.h"
#include "include/ddprun/err.h"
#include "launcher/link/message.h"
#include "launcher/opts.h"

#include <stdbool.h>

struct diagnosis;

/* What a line on the stderr of a process for several hosts says about them. */
struct blame {
    char *hosts;    /* owned: a host list */
    char text[400]; /* why they do not start, without a host name */
    bool sure;      /* false: a more specific line may follow */
    bool follows;   /* another host's failure may be the cause */
    bool gone;      /* also of those whose agents have connected */
};

struct transport {
    const char *name;    /* the value of --start */
    const char *program; /* searched in PATH; NULL: given by --ssh */
    const char *source;  /* the scheduler it belongs to; NULL: none */
    bool at_once;        /* one process for all hosts, including this one */
    bool tree;           /* its agents can start further agents the same way */
    bool by_file;        /* no stdin: the bootstrap lines are in a file */
    bool talks;          /* the agent's stdout arrives at the process's stdout */
    bool lifeline; /* EOF on its stdin reaches the agent, and only we cause that EOF while
                      the job runs */
    /* The arguments to start agents on `nodes`: one node unless at_once. */
    void (*command)(const struct msg_hosts *hosts, const unsigned *nodes, size_t n,
                    struct strv *argv);
    /* Its environment, derived from ours; NULL: ours. */
    void (*environment)(char *const *ours, struct strv *env);
    /* For at_once: the number of the process that starts this host. NULL: one process. */
    unsigned (*part)(const char *host);
    /* For at_once: does this stderr line blame a host? Fills `b`. */
    bool (*blame)(const char *line, const char *agent, struct blame *b);
    /* For transport_diagnose(), by its output; NULL: none. */
    const struct start_failure *reasons;
    /* What else it knows for that. False: nothing. NULL: never. */
    bool (*diagnose)(const struct msg_hosts *hosts, const struct host *host,
                     const char *output, int status, struct diagnosis *d);
};

extern const struct transport transport_ssh, transport_srun, transport_qrsh,
    transport_blaunch, transport_tmrsh, transport_flux;

/* The transport for hosts that come from `source` (struct alloc), and the reason in
 * `why`, for --dry-run. NULL with `err`: the one named by --start is not available. */
const struct transport *transport_choose(enum start_by asked, const char *source,
                                         char *why, size_t size, struct ddp_err *err);

/* For at_once: call `fn` for each process that these nodes need, with its nodes. */
void transport_batches(const struct transport *t, const struct msg_hosts *hosts,
                       const unsigned *nodes, size_t n,
                       void (*fn)(const unsigned *nodes, size_t n, void *arg), void *arg);

/* Its program, as found in PATH: malloc'ed, NULL with `err`. `ssh` as in msg_hosts. */
char *transport_program(const struct transport *t, const char *ssh, struct ddp_err *err);

/* Why an agent did not start: the process has ended with wait status `status` before the
 * agent of `host` connected; `output` is the end of its stderr. */
void transport_diagnose(const struct transport *t, const struct msg_hosts *hosts,
                        const struct host *host, const char *output, int status,
                        struct diagnosis *d);

/* In an agent started by srun: unset the variables that were set for that srun. */
void srun_unset_settings(void);

#endif
