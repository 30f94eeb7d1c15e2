/* launcher/policy/cause.h - the root cause of a job's failure
 *
 * Of all failures the earliest is kept, by the nodes' clocks corrected for their offsets.
 * The later ones are consequences.
 */
#ifndef LAUNCHER_POLICY_CAUSE_H
#define LAUNCHER_POLICY_CAUSE_H

#include <stdbool.h>
#include <stdint.h>

enum cause_kind {
    CAUSE_NONE,
    CAUSE_EXIT,   /* a rank failed: `status` */
    CAUSE_ABORT,  /* a rank aborted the job, as by MPI_Abort: `text`, `code` */
    CAUSE_CANNOT, /* a rank or the store cannot be started: `text`, `code` */
    CAUSE_NODE,   /* a node was lost: `text`, `code` */
    CAUSE_RESIZE, /* no failure: another attempt with other nodes: `text` */
    CAUSE_TIME,   /* --timeout has passed: `code` */
    CAUSE_HANG,   /* --on-hang: `text`, `code`; `rank` -1: stop, else restart */
    CAUSE_STUCK,  /* no progress in several attempts: `text`, `code` */
    CAUSE_SIGNAL, /* ddprun got a signal to end: `status` */
    CAUSE_OUTPUT  /* our stdout cannot be written: `text`, `code` */
};

/* Of a rank, and of ddprun: another attempt would not help. */
enum { EXIT_NO_RESTART = 93 };

struct cause {
    enum cause_kind kind;
    int rank;           /* -1: none */
    int status;         /* CAUSE_EXIT: wait status; CAUSE_SIGNAL: the signal */
    int code;           /* the launcher's exit code */
    int64_t at_ns;      /* on the launcher's clock */
    uint64_t peak_kib;  /* CAUSE_EXIT: peak memory of the rank */
    uint64_t oom_kills; /* CAUSE_EXIT: processes killed on its node for lack of memory */
    uint64_t cpu_max_s; /* CAUSE_EXIT: its limit of CPU time, used up; 0: no */
    char *text;         /* owned, or NULL */
    bool replaceable;   /* CAUSE_NODE: a spare can take its place */
};

/* Is `a` earlier than `b`? By `at_ns`: on one node this is the order in which the kernel
 * reports exits (transport/reap.c), between nodes it depends on the clock offsets. At
 * equal times a death by signal precedes an exit status, as a crash makes other ranks
 * fail and seldom the reverse; otherwise `b`, reported first, stays. A signal to ddprun
 * precedes the death of a rank by the same signal at about the same time: a scheduler
 * signals all processes of a job. The loss of a node precedes a rank's exit status at
 * about the same time: it breaks the rank's connections, and its own is noticed no sooner
 * than theirs.
 */
bool cause_before(const struct cause *a, const struct cause *b);

/* The exit code for a rank that ended with `status`: its own, or 128 + signal. */
int cause_exit_code(int status);

/* "exited with status 3", "died of SIGSEGV (segmentation fault), core dumped"; malloc'ed.
 */
char *cause_of_death(const struct cause *c);

/* "rank 5", "ranks 0-2,4": those of `n` ranks for which `in` is true; malloc'ed, NULL for
 * none. */
char *cause_rank_set(int n, bool (*in)(int rank, void *arg), void *arg);

#endif
