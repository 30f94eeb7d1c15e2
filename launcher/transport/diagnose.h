/* launcher/transport/diagnose.h - why an agent did not start: common to all transports */
#ifndef LAUNCHER_TRANSPORT_DIAGNOSE_H
#define LAUNCHER_TRANSPORT_DIAGNOSE_H

#include "launcher/link/message.h"

#include <stdbool.h>
#include <stddef.h>

/* The diagnosis of a failed start. */
struct diagnosis {
    char text[512]; /* "node03: cannot resolve the name; look at ..." */
    bool again;     /* a retry may succeed */
};

/* What a transport's output means. */
struct start_failure {
    const char *words; /* a part of it; NULL ends a table */
    const char *cause;
    const char *advice; /* NULL: none */
    bool again;         /* as above */
};

/* The first one whose words are in `output`, or NULL. */
const struct start_failure *diagnose_failure(const struct start_failure *reasons,
                                             const char *output);

/* The last non-blank line of `output`, without the agent's name in front. */
void last_output_line(const char *output, const char *host, char *out, size_t size);
/* Explain an exit code 126 or 127 of the agent. False: another code. */
bool diagnose_no_agent(const char *agent, int code, char *out, size_t size);
/* The generic diagnosis: by the agent's exit code, the last line, the status. */
void diagnose_otherwise(const struct host *host, const char *agent, const char *program,
                        const char *output, int status, struct diagnosis *d);

#endif
