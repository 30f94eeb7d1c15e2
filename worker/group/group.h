/* worker/group/group.h - internals of a process group
 *
 * The group owns its layout, the shared memory of its host, its streams to other hosts,
 * and all requests in flight. group_progress() is the progress engine; every call that
 * waits or tests runs it. What several files need of a small one is in its section here.
 */
#ifndef WORKER_GROUP_GROUP_H
#define WORKER_GROUP_GROUP_H

#include "worker/group/hier.h"

#include <pthread.h>

enum request_kind {
    REQUEST_COLL,
    REQUEST_SEND,
    REQUEST_RECV,
    REQUEST_UNEXPECTED /* a message that came before its receive: mailbox.h */
};

/* Limits of a wait, and the detail of its error. */
struct patience {
    int64_t timeout_ms; /* 0: the group's */
    int64_t until;      /* now_ms() when to give up without an error; 0: never */
    int64_t began;      /* when the wait began; 0: not yet. Kept between the calls of
                           ddp_wait_for(). Moved on by time in which we were stopped */
    int64_t looked;     /* when liveness was last checked */
    int64_t moved_ns;   /* when data moved last, and how often they had: */
    uint64_t moves;
    bool reported; /* hang_info_set() was called */
};

struct ddp_request {
    enum request_kind kind;
    bool ended;
    struct ddp_group *group;         /* borrowed */
    struct ddp_request *next;        /* in the queue it waits in */
    struct ddp_request *made_before; /* list of those made for the user */
    /* a message */
    char *data; /* borrowed from the user */
    size_t bytes;
    int peer, tag;
    bool any;        /* from any source; `peer` is set when it arrives */
    int *source;     /* where the source is stored; or NULL */
    uint32_t what;   /* 0: a user's message; else 1 + coll_what() of its collective */
    uint64_t serial; /* of receives in the order posted, of messages in that of arrival */
    void *mark;      /* a backend's own, e.g. an event */
    struct patience patience; /* of ddp_wait_for() */
    /* REQUEST_COLL only; uninitialised in messages, since it is large */
    struct coll coll;
};

/* Requests in FIFO order. */
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

/* Kept per rank: how far one can be ahead and still say what it called. */
enum { CALLS = 64 };

struct ddp_group {
    struct layout layout;
    struct card card;              /* mine */
    char *name;                    /* owned */
    uint64_t id;                   /* of common/arrivals.h */
    const struct backend *backend; /* what moves the data; its state: */
    void *foreign;
    int64_t timeout_ms, spin_ns;
    int64_t asked_ns;        /* when group_check_failures() last polled other hosts */
    struct patience polling; /* of group_poll() */
    size_t arena_bytes;
    bool alone; /* treats no other rank as on its host */
    struct ddp_group
        *family;         /* borrowed: circular list of this group and all made from it */
    unsigned nsubgroups; /* made from this one */
    struct shm *shm;     /* owned; NULL when alone on this host */
    struct tcp *tcp;     /* owned; NULL when all are on this host */
    struct hier *hier;   /* owned */

    struct request_queue colls;   /* collectives in flight, in order */
    uint64_t number;              /* collectives started */
    uint64_t reviewed;            /* compared so far by watch_review() */
    struct call calls[CALLS];     /* the last of them, by number */
    struct mailbox **mailbox;     /* owned, by rank; NULL until there is a message */
    struct mailbox *mailboxes;    /* those that exist */
    struct request_queue any;     /* receives from any source */
    size_t npending;              /* messages in flight */
    uint64_t serial;              /* the last one given to a message */
    struct ahead *spare;          /* owned: a read-ahead buffer of p2p.c */
    struct ddp_request *requests; /* owned: held by the user, newest first, */
    struct ddp_request *idle;     /* and free for reuse */

    struct private_block *private_blocks; /* owned: the arena of a rank without shm */
    bool broken;
    int culprit; /* then: the rank to blame, or -1 */
    struct ddp_err why;
    _Atomic pthread_t waiter;      /* the thread that waits in a call; 0: none */
    bool inherited;                /* by a process that was forked from its owner */
    struct ddp_group *made_before; /* of this process */
};

struct ddp_group *group_new(void);
/* A forked process has copies of its parent's groups: -1, it may neither use nor leave
 * them. */
int group_check_owner(const struct ddp_group *g, struct ddp_err *err);

/* Number a collective, and queue it unless it has ended. */
void group_enter(struct ddp_group *g, struct ddp_request *r);
/* Make progress on all requests. Returns -1 when the group breaks, or is broken. */
int group_progress(struct ddp_group *g, struct ddp_err *err);
/* The same for a caller that polls: it also checks liveness now and then. */
int group_poll(struct ddp_group *g, const bool *ended, struct ddp_err *err);
/* Wait until `r` has ended, or as `p` says; NULL: the group's deadline. */
int group_wait(struct ddp_group *g, const struct ddp_request *r, struct patience *p,
               struct ddp_err *err);
/* For a backend's open(): a call by which the ranks of a foreign library meet, and which
 * has no deadline. It runs in a thread of its own, call(copy of arg); what it has made of
 * the copy is in `arg` afterwards. -1: `what` has not ended by the group's deadline
 * (`hint`: what to look at), or another rank has died or failed; then the call goes on
 * for as long as it likes. */
int group_call_foreign(struct ddp_group *g, void (*call)(void *copy), void *arg,
                       size_t bytes, const char *what, const char *hint,
                       struct ddp_err *err);
/* This rank and another give different lists of ranks for a group; returns -1. */
int group_lists_differ(const struct ddp_group *g, int other, struct ddp_err *err);
/* All ranks of *g make a group with arenas of that size, and leave *g for it. */
int group_replace(struct ddp_group **g, const char *name, size_t arena_bytes,
                  struct ddp_err *err);
/* A collective of the library's own: a broadcast from rank 0 or an all-gather of `bytes`,
 * in host memory whatever the backend. */
int group_share(struct ddp_group *g, enum coll_kind kind, const void *send, void *recv,
                size_t bytes, struct ddp_err *err);
/* Has another rank failed? Called before anything is started, since data that a failed
 * rank has left behind might make it succeed on this rank only. */
int group_check_failures(struct ddp_group *g, struct ddp_err *err);
/* NCCL or MPI has failed, as `err` says. If a rank that has died or calls something
 * else is found soon, it is the cause. Breaks the group; returns -1. */
int group_failed(struct ddp_group *g, struct ddp_err *err);
/* ---- the user's requests: request.c ---- */

/* A message that is to be posted; `bytes` at `data` are only read when it is sent. The
 * fields of a collective stay as they are: to clear them would cost more than the
 * message. */
void message_init(struct ddp_request *r, struct ddp_group *g, enum request_kind kind,
                  int peer, int tag, uint32_t what, void *data, size_t bytes);
/* Can the backend move this memory (host or device)? */
int group_check_memory(const struct ddp_group *g, const void *p, struct ddp_err *err);
/* A collective for the user, given back by ddp_wait(), ddp_test() or ddp_cancel(). */
struct ddp_request *request_hand_out(struct ddp_group *g, const struct coll *c);
/* Make a first attempt; ddp_test() or ddp_wait() report a failure. Returns `r`. */
struct ddp_request *request_set_off(struct ddp_group *g, struct ddp_request *r);
/* Waits and gives it back; NULL: -1, it was not started. */
int request_finish(struct ddp_request *r, struct patience *p, struct ddp_err *err);
/* Free all requests of a group, also those the user has not waited for. */
void requests_free(struct ddp_group *g);

/* ---- awaited.c: which ranks the operations in flight wait for ---- */

/* The current collective, while it waits for ranks of this host; or NULL. */
const struct coll *awaited_coll(const struct ddp_group *g);
/* Do we wait for this rank of our host? Perhaps: as a possible source of a receive from
 * any, or because another library moves the data. */
enum awaited { AWAITED_NOT, AWAITED_PERHAPS, AWAITED };
enum awaited awaited_rank(const struct ddp_group *g, int local);
/* Names the ranks that have not entered the current collective, for which it asks those
 * of other hosts (up to 0.5 s). Returns whether this rank is to tell: the first of rank
 * 0, rank 1 and the first rank of the second host that is not late itself. */
bool group_tells_late(struct ddp_group *g, char *names, size_t size);

/* ---- p2p.c: messages ----
 *
 * Each pair of ranks has one stream per direction (a ring in shared memory, or a
 * connection). Messages are sent whole and in order. A message that arrives before a
 * receive with its tag is posted is buffered as unexpected (mailbox.h). */

/* Start a request; it ends when its buffer may be reused, or is filled. */
void p2p_post(struct ddp_group *g, struct ddp_request *r);
/* Cancel a request of which nothing has been sent or received: true if it was. */
bool p2p_cancel(struct ddp_group *g, struct ddp_request *r);
/* 0, or -1 with `*culprit`, the rank to blame or -1. */
int p2p_progress(struct ddp_group *g, int *culprit, struct ddp_err *err);
/* Tell other hosts that the group ends without an error. */
void p2p_announce_leave(struct ddp_group *g);

/* Can progress be made with a rank of this host: data to read, or room to write? */
bool p2p_ready(const struct ddp_group *g);
/* Is data expected from this rank, or unsent to it? Perhaps: by a receive from any. */
enum awaited p2p_awaits(const struct ddp_group *g, int rank);
bool p2p_awaits_host(const struct ddp_group *g); /* any other rank of this host */
/* A message in flight, for an error text that other ranks report, too. */
struct phrase p2p_name(const struct ddp_group *g);
/* The rank has left without an error: receives from any source no longer wait for it. */
void p2p_left(struct ddp_group *g, int rank);

/* ---- failure.c: the first failure, and how all ranks report the same one ----
 *
 * A rank whose group breaks closes its streams, which looks to its neighbours as if it
 * had died. So the cause is sent before: first into the shared memory of the host, then
 * to other hosts. The rank that finds a cause sends it to all; a rank that receives it
 * forwards it to those it has streams with, since the finder may have been killed before
 * it was done. */

/* Break the group: every call fails with `err` from now on. `culprit` is the rank to
 * blame, or -1. */
int group_break(struct ddp_group *g, int culprit, struct ddp_err *err);
/* Has another rank reported a failure? Then the rank to blame (-1: none), and why; else
 * both stay. */
bool group_failure_reported(struct ddp_group *g, int *culprit, struct ddp_err *theirs);
/* Break the group with a cause that another rank has reported; returns -1. */
int group_forward_failure(struct ddp_group *g, int culprit, struct ddp_err *err);
/* The same if another rank has reported a failure; else 0. */
int group_adopt_failure(struct ddp_group *g, struct ddp_err *err);
/* The same, waiting a moment: the report is sent before a stream is closed, but may
 * take another path. */
int group_adopt_failure_soon(struct ddp_group *g, struct ddp_err *err);
/* The same if another group of the family is broken, or a failure of it has been
 * reported: ranks may have ended, or call something else, because of that. Not if that is
 * the loss of the rank that is `culprit` here; -1: none. */
int group_adopt_family_failure(struct ddp_group *g, int culprit, struct ddp_err *err);
/* `culprit` cannot be reached, as `err` says: break the group, with the reported cause
 * if there is one. Returns -1. */
int group_rank_lost(struct ddp_group *g, int culprit, struct ddp_err *err);
/* The operation in progress, for an error text: "all_reduce #17", or p2p_name(). */
struct phrase group_current_call(const struct ddp_group *g);

/* ---- failure_watch.c: the same while NCCL or MPI moves the data ---- */

/* watch_wanted(): another library moves the group's data. watch_blind(): and we are
 * waiting for it. */
bool watch_wanted(const struct ddp_group *g);
bool watch_blind(const struct ddp_group *g);
/* Record a collective that is being entered. */
void watch_enter(struct ddp_group *g, const struct call *call);
/* Tell the TCP transport which ranks of other hosts to watch. */
void watch_choose(struct ddp_group *g);
/* Has this rank of our host entered the current collective? */
bool watch_came(const struct ddp_group *g, int local);
/* Does a rank of this host call something else than this rank? */
bool watch_contradicted(const struct ddp_group *g, struct ddp_err *err);
/* Compare past calls with those of the next rank of our host, once per WATCH_REVIEWED of
 * them, as that may be ahead. A collective may end well although it is wrong: NCCL and
 * MPI do not compare operations, nor types of one size. */
bool watch_review(struct ddp_group *g, struct ddp_err *err);
enum { WATCH_REVIEWED = CALLS / 2 };
static inline bool watch_due(const struct ddp_group *g)
{
    return g->number - g->reviewed >= WATCH_REVIEWED;
}
/* Tell the ranks that watch us that we leave without an error. */
void watch_leave(struct ddp_group *g);

/* ---- diagnose.c: what the launcher reads ---- */

/* When this rank has entered its collectives. */
void arrivals_open(struct ddp_group *g);       /* once per group, when it is complete */
void arrivals_note(const struct ddp_group *g); /* it enters number g->number */
/* This rank has waited `waited_ms` for `r`: for its first collective, or for a message.
 */
void hang_info_set(const struct ddp_group *g, const struct ddp_request *r,
                   int64_t waited_ms);
/* It is in ddp_group_init(), for a group of `size` ranks; `world`: their numbers in the
 * job, NULL: the same. */
void hang_info_joining(const struct ddp_group *g, int size, const int *world);
void hang_info_clear(void);

#endif
