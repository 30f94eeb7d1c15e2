/* launcher/plugins/mpi/pmix_impl.h - definitions shared by the files of the PMIx server
 *
 * pmix_server.c: main(), and handling of calls in the loop; pmix_calls.c: callbacks in
 * libpmix's threads; pmix_fence.c: operations that wait for other nodes;
 * pmix_related.c, pmix_names.c: operations with other jobs.
 */
#ifndef LAUNCHER_PLUGINS_MPI_PMIX_IMPL_H
#define LAUNCHER_PLUGINS_MPI_PMIX_IMPL_H

#include "launcher/link/link.h"
#include "launcher/link/message.h"
#include "launcher/link/rankmap.h"

#include <pmix_server.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum pmix_call_kind {
    CALL_JOINED,
    CALL_LEFT,
    CALL_ABORT,
    CALL_FENCE,
    CALL_MODEX,
    CALL_ANSWER,
    CALL_SPAWN,
    CALL_RELATED, /* a connect, or a fence with other jobs' ranks */
    CALL_PUBLISH,
    CALL_LOOKUP,
    CALL_UNPUBLISH
};

/* One callback of libpmix, queued for the loop. */
struct pmix_call {
    enum pmix_call_kind kind;
    uint32_t rank; /* the calling rank; CALL_MODEX, CALL_ANSWER: the one asked about */
    int status;    /* CALL_ABORT, _FENCE, _ANSWER, _PUBLISH, _RELATED */
    char *text;    /* owned: CALL_ABORT; CALL_MODEX: the namespace, if not ours */
    void *data;    /* owned */
    size_t size;   /* of `data` */
    uint32_t *ranks, nranks; /* owned: CALL_FENCE: the participants; none: all */
    uint32_t node, id;       /* CALL_ANSWER: the requesting node, its request id */
    pmix_proc_t *procs;      /* owned: CALL_RELATED: the participants */
    size_t nprocs;
    bool connects;           /* CALL_RELATED: `done` is the answer, else `give` */
    struct msg_spawn spawn;  /* owned: CALL_SPAWN */
    struct strv keys;        /* owned: CALL_LOOKUP, CALL_UNPUBLISH */
    struct pmix_name *names; /* owned: CALL_PUBLISH */
    int64_t wait_ms;         /* CALL_LOOKUP */
    union {
        pmix_op_cbfunc_t done;
        pmix_modex_cbfunc_t give;
        pmix_spawn_cbfunc_t spawned;
        pmix_lookup_cbfunc_t found;
    } answer; /* NULL: no answer expected */
    void *cbdata;
    struct pmix_call *prev, *next;
};

/* What a rank has published. */
struct pmix_name {
    char *key;             /* owned */
    pmix_data_type_t type; /* a string or a byte object */
    struct pack value;
    pmix_proc_t by;
    bool once; /* it is gone when it has been read */
    struct pmix_name *next;
};

struct pmix_server {
    struct loop *loop;
    struct link *link;
    struct msg_serve serve; /* the agent's orders; empty before they have come */
    bool serves;            /* all of them could be followed */
    struct rankmap map;     /* owned */
    const char *dir;        /* borrowed: the server's directory; NULL: not created */
    /* owned: a subdirectory for the ranks' files. Ranks ask libpmix to remove it when
     * they finalize; the server's own files, such as the topology, must outlive that. */
    char *ranks_dir;
    int calls[2];              /* owned: a pipe of struct pmix_call * */
    struct event *called;      /* owned */
    int left_fd;               /* owned: an eventfd: CALL_LEFTs that were handled */
    _Atomic bool ends;         /* no further call will be handled */
    struct event *check;       /* owned: timer for warnings */
    struct pmix_call *aborts;  /* owned: not sent yet */
    struct event *abort_timer; /* owned: for them */
    /* owned: not answered yet */
    struct pmix_pending *fences, *modexes, *spawns;
    struct related_op *related;
    struct pmix_lookup *lookups;
    struct event *lookup_timer;   /* owned */
    struct pmix_count *counts;    /* owned: number of operations per set of ranks */
    struct foreign_rank *foreign; /* owned: what ranks of other jobs have committed */
    struct strv known;            /* "NAMESPACE=" of other jobs that are registered */
    struct pmix_name *names;      /* owned: published here */
    uint32_t last_id;
    bool inited;
};

static inline bool pmix_is_own(const struct pmix_server *s, const pmix_proc_t *proc)
{
    return strcmp(proc->nspace, s->serve.nspace) == 0;
}

/* pmix_calls.c: the callbacks for PMIx_server_init(). */
pmix_server_module_t *pmix_calls_begin(struct pmix_server *s);
/* The loop has ended: no callback waits for it. */
void pmix_calls_end(struct pmix_server *s);
/* In the loop: handle all queued calls, in order. */
void pmix_calls_take(struct pmix_server *s,
                     void (*handle)(struct pmix_server *s, struct pmix_call *c));
/* Ask libpmix for the data that the local `rank` has committed; a CALL_ANSWER follows. */
pmix_status_t pmix_calls_ask(struct pmix_server *s, uint32_t node, uint32_t id,
                             uint32_t rank);

/* How many operations of this set of ranks there were. */
uint32_t pmix_count(struct pmix_server *s, const void *key, size_t size);
/* Forget the sets of ranks of another job. */
void pmix_count_forget(struct pmix_server *s, const char *nspace);

/* pmix_fence.c: start an operation; it completes with the frames from other nodes. */
void pmix_fence(struct pmix_server *s, const struct pmix_call *c);
void pmix_modex(struct pmix_server *s, const struct pmix_call *c);
void pmix_on_fence(struct pmix_server *s, const struct msg_fence *m);
int pmix_on_peer(struct pmix_server *s, const struct msg_peer *m, struct ddp_err *err);
void pmix_spawn(struct pmix_server *s, struct pmix_call *c);
void pmix_on_spawned(struct pmix_server *s, const struct msg_spawn_result *m);
/* Answer the modex request `id` of `node`. */
void pmix_answer_peer(struct pmix_server *s, uint32_t node, uint32_t id, int status,
                      const void *data, size_t size);

/* pmix_send(s, MSG(...)) to the agent */
static inline void pmix_send(struct pmix_server *s, enum msg_type type, const void *m)
{
    link_send_msg(s->link, s->serve.node, type, m);
}

#endif
