/* launcher/spawn/node_starter.h - start agents on other hosts and take their calls
 *
 * Runs what the transport says - an ssh per host, at most `window` at a time that have
 * not called back yet, or one srun for all - hands out the summons, listens for the calls
 * and lets in who proves the key. Used by the launcher, and in a tree by agents for those
 * below them.
 *
 * Owner: the job, or an agent. Hosts and key are borrowed.
 */
#ifndef LAUNCHER_SPAWN_NODE_STARTER_H
#define LAUNCHER_SPAWN_NODE_STARTER_H

#include "launcher/link/link.h"
#include "launcher/link/message.h"
#include "launcher/spawn/reap.h"
#include "launcher/spawn/transport.h"

struct node_starter;

struct node_starter_events {
    /* An agent has called and proved the key; `fd` is the callee's to own, `here` the
     * address by which it reached us (borrowed). */
    void (*joined)(unsigned node, int fd, const struct link_keys *keys, const char *here,
                   void *arg);
    /* It does not start: one line with host, cause, and what to try. Once per host. */
    void (*failed)(unsigned node, const char *line, void *arg);
    /* The last process that carried agents has ended. */
    void (*idle)(void *arg);
};

struct node_starter *node_starter_create(struct loop *loop, struct reap *reap,
                                         const struct transport *transport,
                                         const struct msg_hosts *hosts,
                                         const struct secret *key, const char *log_level,
                                         const struct node_starter_events *events,
                                         void *arg, struct ddp_err *err);

/* Put a host in the queue; and begin with those that are there. */
void node_starter_queue(struct node_starter *s, unsigned node);
void node_starter_go(struct node_starter *s);

/* Where a host stands that has not joined, for the line when time is up: malloc'ed. */
char *node_starter_missing(const struct node_starter *s, unsigned node);

bool node_starter_has_carrier(const struct node_starter *s,
                              pid_t pid); /* is it one of them */
bool node_starter_is_idle(const struct node_starter *s);

/* Everybody is there: nobody else is let in, and nobody need listen. */
void node_starter_close(struct node_starter *s);

/* Start nothing more and let go of everything: the lifelines end. */
void node_starter_stop(struct node_starter *s);
/* And of those carriers that do not end by that. */
void node_starter_kill(struct node_starter *s);
void node_starter_destroy(struct node_starter *s);

#endif
