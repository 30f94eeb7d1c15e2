/* launcher/policy/cause.h - what ended the job first, in one line
 *
 * Everything that goes wrong is offered here; kept is what happened first, by the clocks
 * of the nodes brought to one scale. The rest is a consequence and is only counted.
 */
#ifndef LAUNCHER_POLICY_CAUSE_H
#define LAUNCHER_POLICY_CAUSE_H

#include <stdbool.h>
#include <stdint.h>

enum cause_kind {
    CAUSE_NONE,
    CAUSE_EXIT,   /* a rank ended badly: `status` */
    CAUSE_ABORT,  /* a rank has ended the job, as by MPI_Abort: `text`, `code` */
    CAUSE_CANNOT, /* a rank or the store cannot be started: `text`, `code` */
    CAUSE_NODE,   /* a node was lost: `text`, `code` */
    CAUSE_TIME,   /* --timeout is over: `text`, `code` */
    CAUSE_SIGNAL, /* we were told to end: `status` is the signal */
    CAUSE_OUTPUT  /* our stdout is gone: `text`, `code` */
};

struct cause {
    enum cause_kind kind;
    int rank;          /* -1: none */
    int status;        /* CAUSE_EXIT: as waitpid() tells it; CAUSE_SIGNAL: the signal */
    int code;          /* the launcher's exit code */
    int64_t at_ns;     /* on the launcher's clock */
    uint64_t peak_kib; /* CAUSE_EXIT */
    char *text;        /* owned by whoever keeps the cause, or NULL */
};

/* Is `a` the earlier one? The rule: by the time of the end, which on one node is in the
 * order of the kernel's own reports (spawn/reap.c), and between nodes by their clocks,
 * brought to one scale by the quickest ping. Where two times are the same, a death by
 * signal comes before an exit status: a rank that crashes makes others fail, seldom the
 * other way round; else the one that was told first stays. A rank that
 * dies of the signal that we are told to end by, just before or after it, has got it from
 * where we have: a scheduler tells all processes of a job. */
bool cause_before(const struct cause *a, const struct cause *b);

/* The exit code for a rank that ended with `status`: its own, or 128 + signal. */
int cause_exit_code(int status);

/* "exited with status 3", "died of SIGSEGV (segmentation fault), core dumped"; malloc'ed.
 */
char *cause_of_death(const struct cause *c);

/* "rank 5", "ranks 0-2,4"; `in` says which of `n`; malloc'ed, NULL when none is. */
char *cause_rank_set(int n, bool (*in)(int rank, void *arg), void *arg);

#endif
