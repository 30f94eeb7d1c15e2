/* launcher/agent/programs.h - the program of each rank (common/apps.h) */
#ifndef LAUNCHER_AGENT_PROGRAMS_H
#define LAUNCHER_AGENT_PROGRAMS_H

#include "launcher/link/message.h"

struct program {
    uint32_t first;   /* its first rank */
    uint32_t local;   /* the first one on this node, by local rank; ~0: none */
    struct strv argv; /* owned */
    char *path;       /* owned; NULL: not looked for yet */
    void **seen;      /* owned: what plug-ins have seen in its file; NULL: nothing */
};

struct programs {
    struct program *p; /* owned */
    size_t n;          /* 0: malformed */
};

void programs_init(struct programs *all, const struct msg_job *job,
                   const struct msg_share *share);
void programs_finish(struct programs *all);
struct program *programs_of(const struct programs *all, uint32_t rank);

#endif
