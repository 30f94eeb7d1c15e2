/* launcher/spawn/diagnose.h - why an agent did not start: what all ways have in common */
#ifndef LAUNCHER_SPAWN_DIAGNOSE_H
#define LAUNCHER_SPAWN_DIAGNOSE_H

#include "launcher/link/message.h"

#include <stdbool.h>
#include <stddef.h>

/* What a failed start means. */
struct diagnosis {
    char text[512]; /* "node03: cannot resolve the name; look at ..." */
    bool again;     /* it may work when tried again */
};

/* The last line of `said` that is not blank, without the agent's name in front of it. */
void said_last_line(const char *said, const char *host, char *out, size_t size);
/* What an exit code of the agent's own kind (126, 127) means. False: it is none. */
bool diagnose_no_agent(const char *agent, int code, char *out, size_t size);
/* What is left to say: by the agent's exit code, the last line, the status. */
void diagnose_otherwise(const struct host *host, const char *agent, const char *program,
                        const char *said, int status, struct diagnosis *d);

#endif
