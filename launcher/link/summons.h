/* launcher/link/summons.h - the few lines an agent is given on its stdin
 *
 *     ddprun-agent 1            the protocol
 *     key HEX                   of the job
 *     node N                    who you are
 *     name NAME                 and how you are called in the allocation
 *     log LEVELS                only if any
 *     call ADDRESS PORT         where to call back; several, in order of preference
 *     end
 *
 * Nothing of it is in the arguments or the environment, where others could read it. After
 * the last line stdin stays open: its end is the end of whoever started the agent.
 */
#ifndef LAUNCHER_LINK_SUMMONS_H
#define LAUNCHER_LINK_SUMMONS_H

#include "common/secret.h"
#include "common/strv.h"

#include <stdint.h>

struct summons {
    struct secret key;
    unsigned node;
    char *name, *log_level; /* owned; log_level may be NULL */
    struct strv calls;      /* "ADDRESS PORT" */
};

char *summons_write(const struct summons *s); /* the text; the caller wipes and frees */
int summons_parse(const char *text, struct summons *s, struct ddp_err *err);
/* Read them from `fd`, not a byte more, until `deadline_ms`. */
int summons_read(int fd, int64_t deadline_ms, struct summons *s, struct ddp_err *err);
void summons_finish(struct summons *s);

#endif
