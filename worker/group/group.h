/* worker/group/group.h - inside a process group
 *
 * The group owns its layout, the memory of its host, and the row of collectives under
 * way. Progress is made by progress() alone, which every waiting or testing call runs.
 */
#ifndef WORKER_GROUP_GROUP_H
#define WORKER_GROUP_GROUP_H

#include "worker/group/coll.h"
#include "worker/group/meet.h"

enum request_kind { REQUEST_COLL, REQUEST_SEND, REQUEST_RECV };

struct ddp_request {
    enum request_kind kind;
    bool ended;
    struct ddp_group *group;  /* borrowed */
    struct ddp_request *next; /* the collective started after this one */
    struct coll coll;
};

struct private_block {
    struct private_block *next;
};

struct ddp_group {
    struct layout layout;
    char *name; /* owned */
    int64_t timeout_ms;
    struct shm *shm;                      /* owned; NULL when alone on this host */
    struct ddp_request *first, *last;     /* collectives under way, in order */
    uint64_t number;                      /* collectives started */
    struct private_block *private_blocks; /* owned: the arena of a rank without shm */
    bool broken;
    struct ddp_err why;
};

/* Advance whatever can be. Returns -1 when the group breaks, or is broken. */
int group_progress(struct ddp_group *g, struct ddp_err *err);
/* Until `*ended`, with the deadline of the group. */
int group_wait(struct ddp_group *g, const bool *ended, struct ddp_err *err);
/* From now on every call fails with `err`. `culprit` is the rank to blame, or -1. */
int group_break(struct ddp_group *g, int culprit, struct ddp_err *err);

#endif
