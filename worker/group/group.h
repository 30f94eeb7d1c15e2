/* worker/group/group.h - inside a process group
 *
 * The group owns its layout, the memory of its host, its streams to other hosts, and
 * everything that is under way. Progress is made by group_progress() alone, which every
 * waiting or testing call runs.
 */
#ifndef WORKER_GROUP_GROUP_H
#define WORKER_GROUP_GROUP_H

#include "worker/group/hier.h"

enum request_kind { REQUEST_COLL, REQUEST_SEND, REQUEST_RECV };

struct ddp_request {
    enum request_kind kind;
    bool ended;
    struct ddp_group *group;           /* borrowed */
    struct ddp_request *next;          /* in the row it waits in */
    struct ddp_request *older, *newer; /* handed out to the user, and not given back */
    /* a message */
    char *data; /* borrowed from the user */
    size_t bytes;
    int peer, tag;
    bool any;        /* peer: of whom it came, then */
    int *source;     /* where the user wants to know it; or NULL */
    uint32_t what;   /* 0: the user's own; else 1 + coll_what() of which it is a part */
    uint64_t serial; /* in the order asked */
    void *mark;      /* a backend's own: what says that it has ended */
    /* REQUEST_COLL; a message has nothing here, not even zeros: it is large */
    struct coll coll;
};

/* Requests in order. */
struct request_queue {
    struct ddp_request *first, *last;
};

struct private_block {
    struct private_block *next;
};

struct mailbox;
struct ahead;
struct backend;

void queue_append(struct request_queue *row, struct ddp_request *r);
bool queue_remove(struct request_queue *row, struct ddp_request *r); /* was it there? */

enum {
    CALLS = 64
}; /* that one rank can be ahead of others and still say what it called */

struct ddp_group {
    struct layout layout;
    char *name;                    /* owned */
    const struct backend *backend; /* of the data; and what it keeps: */
    void *foreign;
    int64_t timeout_ms, spin_ns;
    int64_t asked_ns;   /* group_check_failures() asked other hosts then */
    int64_t looked_ms;  /* group_poll() looked whether the others still live, */
    uint64_t looked_at; /* when so many things had moved */
    size_t arena_bytes;
    bool alone;               /* takes no other rank to be on its host */
    struct ddp_group *family; /* borrowed: a ring of all groups made from one, and it */
    unsigned nsubgroups;      /* made from this one */
    struct shm *shm;          /* owned; NULL when alone on this host */
    struct tcp *tcp;          /* owned; NULL when all are on this host */
    struct hier *hier;        /* owned; with tcp */

    struct ddp_request *first, *last; /* collectives under way, in order */
    uint64_t number;                  /* collectives started */
    uint64_t reviewed;                /* up to here, by watch_review() */
    struct call calls[CALLS];         /* the last of them, by number */
    struct mailbox **mailbox;         /* owned, by rank; NULL until there is a message */
    struct mailbox *mailboxes;        /* those that exist */
    struct request_queue any;         /* to be received, from whomever */
    size_t npending;                  /* messages under way */
    uint64_t serial;                  /* of the last one asked for */
    uint64_t parcels;                 /* that came unasked, ever */
    struct ahead *spare;              /* owned: of p2p.c, for the next to use */
    struct ddp_request *requests;     /* owned: what the user holds, newest first, */
    struct ddp_request *idle;         /* and what was given back */

    struct private_block *private_blocks; /* owned: the arena of a rank without shm */
    bool broken;
    struct ddp_err why;
};

/* The next collective: numbered, and in the row of those under way unless it has ended.
 */
void group_enter(struct ddp_group *g, struct ddp_request *r);
/* Advance whatever can be. Returns -1 when the group breaks, or is broken. */
int group_progress(struct ddp_group *g, struct ddp_err *err);
/* The same for a caller who asks again and again instead of waiting: every now and then
 * it also looks whether those that are waited for still live. */
int group_poll(struct ddp_group *g, const bool *ended, struct ddp_err *err);
/* Until `*ended`, with the deadline of the group. */
int group_wait(struct ddp_group *g, const bool *ended, struct ddp_err *err);
/* With a deadline of its own, and an error that names all who have not come. */
int group_wait_monitored(struct ddp_group *g, const bool *ended, int64_t timeout_ms,
                         struct ddp_err *err);
/* Once all cards are known: share memory with those on this host, listen for others. */
int group_settle(struct ddp_group *g, struct listeners *listeners, int64_t deadline_ms,
                 struct ddp_err *err);
/* What the user has named, or what the layout asks for. */
int group_open_backend(struct ddp_group *g, struct ddp_err *err);
/* All ranks get rank 0's bytes, which are in host memory, whatever the backend. */
int group_share(struct ddp_group *g, void *data, size_t bytes, struct ddp_err *err);
/* The same for everybody's: recv gets size * bytes. */
int group_share_all(struct ddp_group *g, const void *send, void *recv, size_t bytes,
                    struct ddp_err *err);
/* Has another rank failed? Asked before anything new is started, since what others have
 * left behind might otherwise make it succeed here alone. */
int group_check_failures(struct ddp_group *g, struct ddp_err *err);
/* Somebody else's library has failed, as `err` says. A rank that has died or that calls
 * something else is the cause if one is found soon. Returns -1, broken. */
int group_failed(struct ddp_group *g, struct ddp_err *err);
/* From now on every call fails with `err`. `culprit` is the rank to blame, or -1. */
int group_break(struct ddp_group *g, int culprit, struct ddp_err *err);

#endif
