/* launcher/agent/worker_proc.h - one rank on its node: process, output, input
 *
 * States: WORKER_NEW until started; WORKER_RUNS; WORKER_EXITED once its process is
 * reaped. Its streams may outlive it: they end when no process holds the other end.
 *
 * Flow control: output is read only while the agent has credit. Without credit the pipe
 * fills up and the rank blocks, so a slow reader of ddprun's output slows the ranks down
 * instead of filling memory.
 */
#ifndef LAUNCHER_AGENT_WORKER_PROC_H
#define LAUNCHER_AGENT_WORKER_PROC_H

#include "launcher/agent/pty.h"
#include "launcher/link/message.h"
#include "launcher/transport/reap.h"

enum worker_state { WORKER_NEW, WORKER_RUNS, WORKER_EXITED };

struct worker_proc;

/* Callbacks to the agent. */
struct worker_events {
    /* How many of `n` bytes may be read now; 0: wait for worker_resume(). */
    size_t (*credit)(size_t n, void *arg);
    /* Bytes of stream 0 (stdout) or 1 (stderr); n == 0: end of file. */
    void (*out)(struct worker_proc *w, unsigned stream, const void *data, size_t n,
                void *arg);
    void (*exited)(struct worker_proc *w, const struct msg_exit *how, void *arg);
    /* The rank has taken `n` bytes of input, or has closed its end before. */
    void (*taken)(struct worker_proc *w, size_t n, void *arg);
};

struct worker_proc *worker_create(struct loop *loop, struct reap *reap, int rank,
                                  const struct worker_events *events, void *arg);
void worker_destroy(struct worker_proc *w); /* does not end the process */

/* A start has two steps, as the process is made elsewhere: create the streams (`theirs`:
 * the rank's ends, owned by the caller; -1: none, as stdin is without `input`), then set
 * its pid, a child of ours. `pidfd`: passed to reap_order() already; -1: none. With `tty`
 * all three are a pseudo-terminal of that size, which is read as stdout. */
int worker_open(struct worker_proc *w, bool input, const struct pty_size *tty,
                int theirs[3]);
void worker_adopt(struct worker_proc *w, pid_t pid, int pidfd);
/* Close the rank's ends: those that are not -1, which they are then. errno stays. */
void worker_close_ends(int *fds, size_t n);

int worker_rank(const struct worker_proc *w);
enum worker_state worker_state(const struct worker_proc *w);
pid_t worker_pid(const struct worker_proc *w);    /* 0 when it has exited */
pid_t worker_group(const struct worker_proc *w);  /* its process group, also later */
bool worker_drained(const struct worker_proc *w); /* both streams have ended */

void worker_signal(struct worker_proc *w, int sig); /* to its process group */
void worker_resume(struct worker_proc *w);          /* credit is available again */

/* Close its streams: those that are empty and that no process can write to any more; or
 * also those that another process holds, if empty and not waiting for credit; or all. */
enum worker_cut { CUT_ENDED, CUT_IDLE, CUT_ALL };
void worker_cut(struct worker_proc *w, enum worker_cut which);

/* Of its pseudo-terminal, if it has one. */
void worker_resize(struct worker_proc *w, const struct pty_size *size);

/* Write to its stdin; n == 0: end of file. The data is copied. */
void worker_input(struct worker_proc *w, const void *data, size_t n);

#endif
