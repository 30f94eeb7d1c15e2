/* launcher/spawn/starter.h - start agents on other hosts and take their calls
 *
 * Runs what the transport says - an ssh per host, at most `window` at a time that have
 * not called back yet, or one srun for all - hands out the summons, listens for the calls
 * and lets in who proves the key. Used by the launcher, and in a tree by agents for those
 * below them.
 *
 * Owner: the job, or an agent. Hosts and key are borrowed.
 */
#ifndef LAUNCHER_SPAWN_STARTER_H
#define LAUNCHER_SPAWN_STARTER_H

#include "launcher/link/link.h"
#include "launcher/link/message.h"
#include "launcher/spawn/reap.h"
#include "launcher/spawn/transport.h"

struct starter;

struct starter_events {
    /* An agent has called and proved the key; `fd` is the callee's to own, `here` the
     * address by which it reached us (borrowed). */
    void (*joined)(unsigned node, int fd, const struct link_keys *keys, const char *here,
                   void *arg);
    /* It does not start: one line with host, cause, and what to try. Once per host. */
    void (*failed)(unsigned node, const char *line, void *arg);
    /* The last process that carried agents has ended. */
    void (*idle)(void *arg);
};

struct starter *starter_create(struct loop *loop, struct reap *reap,
                               const struct transport *transport,
                               const struct msg_hosts *hosts, const struct secret *key,
                               const char *log_level, const struct starter_events *events,
                               void *arg, struct ddp_err *err);

/* Put a host in the queue; and begin with those that are there. */
void starter_queue(struct starter *s, unsigned node);
void starter_go(struct starter *s);

/* Where a host stands that has not joined, for the line when time is up: malloc'ed. */
char *starter_missing(const struct starter *s, unsigned node);

bool starter_has_carrier(const struct starter *s, pid_t pid); /* is it one of them */
bool starter_is_idle(const struct starter *s);

/* Everybody is there: nobody else is let in, and nobody need listen. */
void starter_close(struct starter *s);

/* Start nothing more and let go of everything: the lifelines end. */
void starter_stop(struct starter *s);
/* And of those carriers that do not end by that. */
void starter_kill(struct starter *s);
void starter_destroy(struct starter *s);

#endif
