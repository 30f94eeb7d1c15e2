/* launcher/link/bootstrap.h - the few lines an agent is given, on its stdin as a rule
 *
 *     ddprun-agent 1            the protocol
 *     key HEX                   of the node; with seats of the job
 *     node N                    who you are
 *     name NAME                 and how you are called in the allocation
 *     seat N HOSTS              in the place of both: these hosts are nodes N, N+1, ...
 *     log LEVELS                only if any
 *     call ADDRESS PORT         where to call back; several, in order of preference
 *     detached                  the end of stdin means nothing
 *     end
 *
 * Nothing of it is in the arguments or the environment, where others could read it. After
 * the last line stdin stays open: its end is the end of whoever started the agent, unless
 * they say "detached". Where one process starts all agents and each gets the same words
 * they have seats, and each agent finds its own by the name of its host.
 */
#ifndef LAUNCHER_LINK_BOOTSTRAP_H
#define LAUNCHER_LINK_BOOTSTRAP_H

#include "common/secret.h"
#include "common/strv.h"

#include <stdbool.h>
#include <stdint.h>

struct bootstrap {
    struct secret key;
    bool of_job; /* `key` is the job's: several nodes have the same words */
    unsigned node;
    char *name, *log_level; /* owned; log_level may be NULL; so may name, with seats */
    struct strv calls;      /* "ADDRESS PORT" */
    struct strv seats;      /* "N NAME" */
    bool detached;
};

void bootstrap_add_node(struct bootstrap *s, unsigned node, const char *name);
/* Are these one host, where one of them may be without its domain? */
bool bootstrap_is_host(const char *name, const char *own);
/* Take the seat of the host called `name`, with or without its domain. Returns whether
 * there is one; a summons without seats has been for this host anyway. */
bool bootstrap_take_node(struct bootstrap *s, const char *name);

char *
bootstrap_write(const struct bootstrap *s); /* the text; the caller wipes and frees */
int bootstrap_parse(const char *text, struct bootstrap *s, struct ddp_err *err);
/* Read them from `fd`, not a byte more, until `deadline_ms`. */
int bootstrap_read(int fd, int64_t deadline_ms, struct bootstrap *s, struct ddp_err *err);
void bootstrap_finish(struct bootstrap *s);

#endif
