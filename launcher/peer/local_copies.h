/* launcher/peer/local_copies.h - the copies of ddprun on one machine
 *
 * The one with local rank 0 leads: it waits until the others have reported, takes over
 * what they were given (CPUs, GPUs), and at the end tells them the exit code. They do
 * nothing but wait for it; a signal that means the end is passed on to it. When it dies
 * they end, too, and when one of them dies it ends the job. They meet at an abstract unix
 * socket, and trust its user alone.
 */
#ifndef LAUNCHER_PEER_LOCAL_COPIES_H
#define LAUNCHER_PEER_LOCAL_COPIES_H

#include "launcher/peer/ambient_job.h"

struct local_copies;

/* Wait for the other local_size - 1. NULL with `err` when one has not come in time. */
struct local_copies *local_copies_lead(const struct ambient_job *o, int64_t deadline_ms,
                                       struct ddp_err *err);
/* Readable as soon as one of them has ended; -1: there are none (NULL is fine). Borrowed,
 * and never read from. */
int local_copies_gone_fd(const struct local_copies *m);
/* Give them the code, and forget them. NULL is fine. */
void local_copies_end(struct local_copies *m, int code);
/* The same without a word: in a fork of the leader, which is not who tells them. */
void local_copies_forget(struct local_copies *m);

/* The life of another one: until it is told the code, which is returned. */
int local_copies_follow(const struct ambient_job *o, int64_t deadline_ms,
                        struct ddp_err *err);

/* mpirun and Hydra bind each copy to a core or two, where one copy is to start ranks on
 * all: take the CPUs of the starter's daemon instead. */
void local_copies_unbind(void);

#endif
