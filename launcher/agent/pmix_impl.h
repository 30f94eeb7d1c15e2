/* launcher/agent/pmix_impl.h - what the files of the PMIx server share
 *
 * pmix_server.c: its life, and what is done about each call; pmix_calls.c: libpmix's
 * threads; pmix_fence.c: what waits for other nodes.
 */
#ifndef LAUNCHER_AGENT_PMIX_IMPL_H
#define LAUNCHER_AGENT_PMIX_IMPL_H

#include "launcher/agent/pmix_server.h"
#include "launcher/link/rankmap.h"

#include <pmix_server.h>
#include <pthread.h>

enum pmix_call_kind {
    CALL_JOINED,
    CALL_LEFT,
    CALL_ABORT,
    CALL_FENCE,
    CALL_MODEX,
    CALL_ANSWER
};

/* One call of libpmix. */
struct pmix_call {
    enum pmix_call_kind kind;
    uint32_t rank;           /* whose it is, or whom it is about */
    int status;              /* CALL_ABORT, CALL_FENCE, CALL_ANSWER */
    char *text;              /* owned: CALL_ABORT */
    void *data;              /* owned */
    size_t size;             /* of it */
    uint32_t *ranks, nranks; /* owned: CALL_FENCE: who meets; none: all */
    uint32_t node, id;       /* CALL_ANSWER: who has asked */
    union {
        pmix_op_cbfunc_t done;
        pmix_modex_cbfunc_t give;
    } answer; /* NULL: none is wanted */
    void *cbdata;
    struct pmix_call *prev, *next;
};

struct pmix_server {
    struct loop *loop;      /* borrowed */
    struct link *link;      /* borrowed */
    struct msg_serve serve; /* owned */
    struct rankmap map;     /* owned */
    char *dir;              /* owned: a directory of ours; NULL: not made */
    /* owned: in it, for the ranks' files. They ask libpmix to remove it when they go, and
     * those who come after them still need ours, such as the topology. */
    char *ranks_dir;
    pthread_mutex_t lock;                  /* of `calls` */
    struct pmix_call *calls;               /* owned: not looked at yet */
    int wake_fd;                           /* owned */
    struct event *wake;                    /* owned */
    struct event *look;                    /* owned */
    struct pmix_pending *fences, *modexes; /* owned: not answered yet */
    struct pmix_count *counts;             /* owned: how often the same ranks have met */
    uint32_t last_id;
    bool inited;
};

/* pmix_calls.c: what libpmix is to call from now on. */
pmix_server_module_t *pmix_calls_begin(struct pmix_server *s);
/* In the loop: handle what has come since, each once, in order. */
void pmix_calls_take(struct pmix_server *s,
                     void (*handle)(struct pmix_server *s, struct pmix_call *c));
/* libpmix is asked what `rank`, one of ours, has told; a CALL_ANSWER follows. */
pmix_status_t pmix_calls_ask(struct pmix_server *s, uint32_t node, uint32_t id,
                             uint32_t rank);

/* pmix_fence.c: a call begins; it is answered by what is heard of the other nodes. */
void pmix_fence(struct pmix_server *s, const struct pmix_call *c);
void pmix_modex(struct pmix_server *s, const struct pmix_call *c);
int pmix_hear_fence(struct pmix_server *s, const struct frame *f, struct ddp_err *err);
int pmix_hear_peer(struct pmix_server *s, const struct frame *f, struct ddp_err *err);
/* What `node` has asked by `id`. */
void pmix_answer_peer(struct pmix_server *s, uint32_t node, uint32_t id, int status,
                      const void *data, size_t size);

/* pmix_server.c: to the agent; `k` is finished. */
void pmix_send(struct pmix_server *s, enum msg_type type, struct pack *k,
               const void *data, size_t size);

#endif
