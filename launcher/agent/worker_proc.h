/* launcher/agent/worker_proc.h - one rank on its node: process, output, input
 *
 * States: WORKER_NEW until started; WORKER_RUNS; WORKER_EXITED when its process is
 * reaped. Its streams live longer than it: they end when nobody holds the other end any
 * more.
 *
 * Output is read only while the agent has credit for it; without, the pipe fills up and
 * the rank waits, which is how a slow reader of ddprun's output slows the ranks down
 * instead of filling memory.
 */
#ifndef LAUNCHER_AGENT_WORKER_PROC_H
#define LAUNCHER_AGENT_WORKER_PROC_H

#include "launcher/link/message.h"
#include "launcher/spawn/child.h"
#include "launcher/spawn/reap.h"

enum worker_state { WORKER_NEW, WORKER_RUNS, WORKER_EXITED };

struct worker_proc;

/* What the agent hears and is asked. */
struct worker_events {
    /* May `n` more bytes be read? How many then; 0: wait for worker_resume(). */
    size_t (*credit)(size_t n, void *arg);
    /* Bytes of stream 0 (stdout) or 1 (stderr); none: it has ended. */
    void (*out)(struct worker_proc *w, unsigned stream, const void *data, size_t n,
                void *arg);
    void (*exited)(struct worker_proc *w, const struct msg_exit *how, void *arg);
    /* So many bytes of input have been taken by the rank, or are discarded as it has
     * closed its end. */
    void (*taken)(struct worker_proc *w, size_t n, void *arg);
};

struct worker_proc *worker_create(struct loop *loop, struct reap *reap, int rank,
                                  const struct worker_events *events, void *arg);
void worker_destroy(struct worker_proc *w); /* does not end the process */

/* Start it: `spec` without its three streams. With `input` it gets a pipe as stdin, else
 * /dev/null. -1 with errno and the step. */
int worker_start(struct worker_proc *w, struct child_spec *spec, bool input,
                 enum child_step *step);

/* The same in two steps, for a process that somebody else forks: its ends of the streams
 * (`theirs`, the caller's; -1: none), then its pid, a child of ours. */
int worker_open(struct worker_proc *w, bool input, int theirs[3]);
void worker_adopt(struct worker_proc *w, pid_t pid);

int worker_rank(const struct worker_proc *w);
enum worker_state worker_state(const struct worker_proc *w);
pid_t worker_pid(const struct worker_proc *w);    /* 0 when it has exited */
bool worker_drained(const struct worker_proc *w); /* both streams have ended */

void worker_signal(struct worker_proc *w, int sig); /* to its process group */
void worker_resume(struct worker_proc *w);          /* there is credit again */

/* Close its streams although another process still holds the other end. With `idle_only`
 * a stream stays open that holds bytes or waits for credit: its bytes are still to be
 * delivered. */
void worker_cut(struct worker_proc *w, bool idle_only);

/* Bytes for its stdin; none: the end. Copied. */
void worker_input(struct worker_proc *w, const void *data, size_t n);

#endif
