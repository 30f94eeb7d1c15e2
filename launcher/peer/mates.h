/* launcher/peer/mates.h - the copies of ddprun on one machine
 *
 * The one with local rank 0 leads: it waits until the others have reported, takes over
 * what they were given (CPUs, GPUs), and at the end tells them the exit code. They do
 * nothing but wait for it; a signal that means the end is passed on to it. When it dies
 * they end, too, and when one of them dies it ends the job. They meet at an abstract unix
 * socket, and trust its user alone.
 */
#ifndef LAUNCHER_PEER_MATES_H
#define LAUNCHER_PEER_MATES_H

#include "launcher/peer/outer.h"

struct mates;

/* Wait for the other local_size - 1. NULL with `err` when one has not come in time. */
struct mates *mates_lead(const struct outer *o, int64_t deadline_ms, struct ddp_err *err);
/* Readable as soon as one of them has ended; -1: there are none (NULL is fine). Borrowed,
 * and never read from. */
int mates_gone_fd(const struct mates *m);
/* Give them the code, and forget them. NULL is fine. */
void mates_end(struct mates *m, int code);
/* The same without a word: in a fork of the leader, which is not who tells them. */
void mates_forget(struct mates *m);

/* The life of another one: until it is told the code, which is returned. */
int mates_follow(const struct outer *o, int64_t deadline_ms, struct ddp_err *err);

/* mpirun and Hydra bind each copy to a core or two, where one copy is to start ranks on
 * all: take the CPUs of the starter's daemon instead. */
void mates_unbind(void);

#endif
