/* launcher/peer/local_copies.h - several instances of ddprun on one machine
 *
 * The instance with local rank 0 is the leader: it waits for the others' reports, takes
 * their CPUs and GPUs, and sends them the exit code at the end. The others only wait, and
 * forward termination signals to the leader. If the leader dies they end; if one of them
 * dies the leader stops the job. They meet at an abstract Unix socket and accept only
 * their own user.
 */
#ifndef LAUNCHER_PEER_LOCAL_COPIES_H
#define LAUNCHER_PEER_LOCAL_COPIES_H

#include "launcher/peer/ambient_job.h"

struct local_copies;

/* Wait for the other local_size - 1. NULL with `err` when one does not report in time:
 * `deadline_ms`, moved by time in which this process is stopped (common/limit.h). */
struct local_copies *local_copies_lead(const struct ambient_job *o, int64_t deadline_ms,
                                       struct ddp_err *err);
/* Borrowed: readable when one of them has ended, but never read; -1: none, or NULL. */
int local_copies_gone_fd(const struct local_copies *m);
/* Send them the exit code and free `m`. NULL is fine. */
void local_copies_end(struct local_copies *m, int code);
/* Free `m` without sending: in a fork of the leader. */
void local_copies_forget(struct local_copies *m);

/* The other instances: find the leader by that deadline, and return its exit code. */
int local_copies_follow(const struct ambient_job *o, int64_t deadline_ms,
                        struct ddp_err *err);

/* mpirun and Hydra bind each instance to one or two cores. An instance that starts all
 * ranks of the node takes the CPUs of the outer launcher's daemon instead. */
void local_copies_unbind(void);

#endif
