/* launcher/agent/pmix_server.c - see pmix_server.h
 *
 * libpmix has threads of its own and calls us on them. A call is copied, put on a list
 * and waited for by nobody; an eventfd tells the loop, which does the work and answers by
 * the callback that came with it (those may be called from any thread).
 *
 * Known of libpmix 4.2 and heeded here: a client is never deregistered one by one (that
 * breaks the descriptors of those that come after it); job_control has to be there or
 * files of dead ranks stay; the data of a fence are ours to free, whatever its header
 * says; client_connected2 comes without a callback.
 */
#define LOG_SUBSYS "pmix"
#include "launcher/agent/pmix_server.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/agent/pmix_gate.h"
#include "launcher/agent/pmix_world.h"
#include "launcher/contract.h"
#include "launcher/link/rankmap.h"

#include <errno.h>
#include <ftw.h>
#include <pmix.h>
#include <pmix_server.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

/* ms: libpmix's to let go of its ranks, and the agent's to hear that one has left */
enum { GO_MS = 1000, TELL_MS = 1000 };

enum call_kind {
    CALL_JOINED,
    CALL_LEFT,
    CALL_ABORT,
    CALL_FENCE,
    CALL_MODEX,
    CALL_ANSWER
};

/* One call of libpmix. */
struct call {
    enum call_kind kind;
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
    struct call *prev, *next;
};

/* A fence or a modex that has not been answered. */
struct pending {
    uint8_t *key; /* owned: of a fence */
    size_t nkey;
    uint32_t id; /* of a modex */
    pmix_modex_cbfunc_t give;
    void *cbdata;
    struct pending *prev, *next;
};

/* How often the same ranks have met: each server counts for itself. */
struct count {
    uint32_t *ranks, nranks; /* owned */
    uint32_t n;
    struct count *next;
};

struct pmix_server {
    struct loop *loop;                /* borrowed */
    struct link *link;                /* borrowed */
    struct msg_serve serve;           /* owned */
    struct rankmap map;               /* owned */
    char *dir;                        /* owned: a directory of ours; NULL: not made */
    pthread_mutex_t lock;             /* of `calls` */
    struct call *calls;               /* owned: not looked at yet */
    int wake_fd;                      /* owned */
    struct event *wake;               /* owned */
    struct pending *fences, *modexes; /* owned */
    struct count *counts;             /* owned */
    uint32_t last_id;
    bool inited, stuck;
};

/* libpmix's callbacks carry no word of ours. */
static struct pmix_server *self;

static void call_free(struct call *c)
{
    free(c->text);
    free(c->data);
    free(c->ranks);
    free(c);
}

/* --- on libpmix's threads ----------------------------------------------------------- */

static pmix_status_t post(struct call c)
{
    struct call *copy = xmemdup(&c, sizeof c);
    pthread_mutex_lock(&self->lock);
    bool first = !self->calls;
    DL_APPEND(self->calls, copy);
    pthread_mutex_unlock(&self->lock);
    if (first && eventfd_write(self->wake_fd, 1) < 0)
        abort(); /* it is ours, and never full */
    return PMIX_SUCCESS;
}

static pmix_status_t on_connected(const pmix_proc_t *proc, void *object,
                                  pmix_info_t info[], size_t ninfo, pmix_op_cbfunc_t done,
                                  void *cbdata)
{
    post((struct call){.kind = CALL_JOINED, .rank = proc->rank});
    return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t on_finalized(const pmix_proc_t *proc, void *object,
                                  pmix_op_cbfunc_t done, void *cbdata)
{
    return post((struct call){
        .kind = CALL_LEFT, .rank = proc->rank, .answer.done = done, .cbdata = cbdata});
}

static pmix_status_t on_abort(const pmix_proc_t *proc, void *object, int status,
                              const char text[], pmix_proc_t procs[], size_t nprocs,
                              pmix_op_cbfunc_t done, void *cbdata)
{
    return post((struct call){.kind = CALL_ABORT,
                              .rank = proc->rank,
                              .status = status,
                              .text = xstrdup(text),
                              .answer.done = done,
                              .cbdata = cbdata});
}

static int local_status(const pmix_info_t info[], size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (PMIX_CHECK_KEY(&info[i], PMIX_LOCAL_COLLECTIVE_STATUS))
            return info[i].value.data.status;
    }
    return PMIX_SUCCESS;
}

static pmix_status_t on_fence(const pmix_proc_t procs[], size_t nprocs,
                              const pmix_info_t info[], size_t ninfo, char *data,
                              size_t size, pmix_modex_cbfunc_t give, void *cbdata)
{
    struct call c = {.kind = CALL_FENCE,
                     .status = local_status(info, ninfo),
                     .data = data,
                     .size = size,
                     .nranks = (uint32_t)nprocs,
                     .answer.give = give,
                     .cbdata = cbdata};
    for (size_t i = 0; i < nprocs; i++) {
        if (procs[i].rank == PMIX_RANK_WILDCARD)
            c.nranks = 0;
    }
    if (c.nranks > 0)
        c.ranks = xcalloc(c.nranks, sizeof *c.ranks);
    for (uint32_t i = 0; i < c.nranks; i++)
        c.ranks[i] = procs[i].rank;
    return post(c);
}

static pmix_status_t on_modex(const pmix_proc_t *proc, const pmix_info_t info[],
                              size_t ninfo, pmix_modex_cbfunc_t give, void *cbdata)
{
    return post((struct call){
        .kind = CALL_MODEX, .rank = proc->rank, .answer.give = give, .cbdata = cbdata});
}

/* A rank of ours has told what another node wants to know of it. */
static void on_committed(pmix_status_t status, char *data, size_t size, void *cbdata)
{
    struct pending *asked = cbdata;
    post((struct call){.kind = CALL_ANSWER,
                       .status = status,
                       .data = size > 0 ? xmemdup(data, size) : NULL,
                       .size = size,
                       .node = (uint32_t)asked->nkey,
                       .id = asked->id});
    free(asked);
}

static pmix_status_t on_spawn(const pmix_proc_t *proc, const pmix_info_t info[],
                              size_t ninfo, const pmix_app_t apps[], size_t napps,
                              pmix_spawn_cbfunc_t done, void *cbdata)
{
    post((struct call){.kind = CALL_ABORT,
                       .rank = proc->rank,
                       .status = 0,
                       .text = xstrdup(napps > 0 && apps[0].cmd ? apps[0].cmd : "?")});
    done(PMIX_ERR_NOT_SUPPORTED, (char[PMIX_MAX_NSLEN + 1]){""}, cbdata);
    return PMIX_SUCCESS;
}

/* Connected or parted: within one job there is nothing to be done about it. */
static pmix_status_t on_connect(const pmix_proc_t procs[], size_t nprocs,
                                const pmix_info_t info[], size_t ninfo,
                                pmix_op_cbfunc_t done, void *cbdata)
{
    return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t on_control(const pmix_proc_t *asks, const pmix_proc_t targets[],
                                size_t ntargets, const pmix_info_t info[], size_t ninfo,
                                pmix_info_cbfunc_t done, void *cbdata)
{
    return PMIX_ERR_NOT_SUPPORTED;
}

static pmix_server_module_t module = {
    .client_connected2 = on_connected,
    .client_finalized = on_finalized,
    .abort = on_abort,
    .fence_nb = on_fence,
    .direct_modex = on_modex,
    .spawn = on_spawn,
    .connect = on_connect,
    .disconnect = on_connect,
    .job_control = on_control,
};

/* --- in the loop: what libpmix wants ------------------------------------------------ */

static void send_pack(struct pmix_server *s, enum msg_type type, struct pack *k,
                      const void *data, size_t size)
{
    link_send(s->link, type, s->serve.node, k->p, k->n, data, size);
    pack_finish(k);
}

static void send_member(struct pmix_server *s, uint32_t rank, enum member_state state)
{
    struct msg_member m = {rank, state};
    struct pack k = {0};
    msg_member_pack(&m, &k);
    send_pack(s, MSG_MEMBER, &k, NULL, 0);
}

static void send_abort(struct pmix_server *s, const struct call *c)
{
    /* Open MPI passes "N/A" for no text at all */
    bool said = c->text && c->text[0] && strcmp(c->text, "N/A") != 0;
    struct msg_abort m = {.rank = c->rank, .code = c->status, .at_ns = now_ns()};
    m.text = xasprintf("called MPI_Abort with code %d%s%s%s", c->status,
                       said ? " and '" : "", said ? c->text : "", said ? "'" : "");
    struct pack k = {0};
    msg_abort_pack(&m, &k);
    send_pack(s, MSG_ABORT, &k, NULL, 0);
    msg_abort_finish(&m);
}

static uint32_t count_of(struct pmix_server *s, const struct call *c)
{
    struct count *n;
    LL_FOREACH (s->counts, n) {
        if (n->nranks == c->nranks &&
            (c->nranks == 0 || memcmp(n->ranks, c->ranks, 4 * (size_t)c->nranks) == 0))
            return n->n++;
    }
    n = xcalloc(1, sizeof *n);
    n->nranks = c->nranks;
    n->ranks = c->nranks ? xmemdup(c->ranks, 4 * (size_t)c->nranks) : NULL;
    LL_PREPEND(s->counts, n);
    return n->n++;
}

/* The nodes of those ranks, each once, in order. */
static void nodes_of(const struct pmix_server *s, const struct call *c,
                     struct msg_fence *m)
{
    bool *in = xcalloc(s->map.nnodes, sizeof *in);
    for (uint32_t i = 0; i < c->nranks; i++) {
        if (c->ranks[i] < s->map.nranks)
            in[s->map.node_of[c->ranks[i]]] = true;
    }
    m->nodes = c->nranks ? xcalloc(s->map.nnodes, sizeof *m->nodes) : NULL;
    for (uint32_t i = 0; m->nodes && i < s->map.nnodes; i++) {
        if (in[i])
            m->nodes[m->nnodes++] = i;
    }
    free(in);
}

static void begin_fence(struct pmix_server *s, const struct call *c)
{
    struct pack key = {0}, k = {0};
    pack_u32(&key, count_of(s, c));
    for (uint32_t i = 0; i < c->nranks; i++)
        pack_u32(&key, c->ranks[i]);
    struct pending *p = xcalloc(1, sizeof *p);
    *p = (struct pending){
        .key = key.p, .nkey = key.n, .give = c->answer.give, .cbdata = c->cbdata};
    DL_APPEND(s->fences, p);
    struct msg_fence m = {.service = SERVICE_PMIX,
                          .key = key.p,
                          .nkey = (uint32_t)key.n,
                          .status = c->status};
    nodes_of(s, c, &m);
    msg_fence_pack_head(&m, &k);
    log_debug("fence %u of %u ranks brings %zu bytes, status %d", s->last_id, c->nranks,
              c->size, c->status);
    send_pack(s, MSG_FENCE, &k, c->data, c->size);
    msg_fence_finish(&m);
}

enum { PEER_ASKS, PEER_ANSWERS };

static void send_peer(struct pmix_server *s, uint32_t node, unsigned what, uint32_t id,
                      uint32_t number, const void *data, size_t size)
{
    struct msg_peer m = {.node = node, .service = SERVICE_PMIX};
    struct pack k = {0};
    msg_peer_pack_head(&m, &k);
    pack_u8(&k, what);
    pack_u32(&k, id);
    pack_u32(&k, number);
    send_pack(s, MSG_PEER, &k, data, size);
}

static void ask_modex(struct pmix_server *s, const struct call *c)
{
    if (c->rank >= s->map.nranks) {
        c->answer.give(PMIX_ERR_NOT_FOUND, NULL, 0, c->cbdata, NULL, NULL);
        return;
    }
    struct pending *p = xcalloc(1, sizeof *p);
    *p =
        (struct pending){.id = ++s->last_id, .give = c->answer.give, .cbdata = c->cbdata};
    DL_APPEND(s->modexes, p);
    send_peer(s, s->map.node_of[c->rank], PEER_ASKS, p->id, c->rank, NULL, 0);
}

static void handle(struct pmix_server *s, struct call *c)
{
    switch (c->kind) {
    case CALL_JOINED:
        log_debug("rank %u has joined", c->rank);
        send_member(s, c->rank, MEMBER_JOINED);
        break;
    case CALL_LEFT:
        log_debug("rank %u leaves", c->rank);
        send_member(s, c->rank, MEMBER_LEFT);
        link_flush(s->link, now_ms() + TELL_MS); /* before it may exit */
        break;
    case CALL_ABORT:
        if (c->answer.done)
            send_abort(s, c);
        else
            log_error("rank %u asks for more processes ('%s'): MPI_Comm_spawn is not "
                      "supported, start all ranks at once",
                      c->rank, c->text);
        break;
    case CALL_FENCE:
        begin_fence(s, c);
        return;
    case CALL_MODEX:
        ask_modex(s, c);
        return;
    case CALL_ANSWER:
        send_peer(s, c->node, PEER_ANSWERS, c->id, (uint32_t)c->status, c->data, c->size);
        return;
    }
    if (c->answer.done)
        c->answer.done(PMIX_SUCCESS, c->cbdata);
}

static void on_wake(evutil_socket_t fd, short what, void *arg)
{
    struct pmix_server *s = arg;
    eventfd_t n;
    if (eventfd_read(fd, &n) < 0)
        return;
    pthread_mutex_lock(&s->lock);
    struct call *list = s->calls, *c, *next;
    s->calls = NULL;
    pthread_mutex_unlock(&s->lock);
    DL_FOREACH_SAFE (list, c, next) {
        handle(s, c);
        call_free(c);
    }
}

/* --- in the loop: what the other nodes say ------------------------------------------ */

static void give(struct pending *p, int status, const void *data, size_t size)
{
    void *copy = size > 0 ? xmemdup(data, size) : NULL;
    p->give(status, copy, size, p->cbdata, free, copy);
}

static void pending_free(struct pending *p)
{
    free(p->key);
    free(p);
}

static int hear_fence(struct pmix_server *s, const struct frame *f, struct ddp_err *err)
{
    struct msg_fence m = {0};
    if (msg_fence_unpack(f, &m, err) < 0)
        return -1;
    struct pending *p, *next;
    DL_FOREACH_SAFE (s->fences, p, next) {
        if (p->nkey != m.nkey || memcmp(p->key, m.key, m.nkey) != 0)
            continue;
        DL_DELETE(s->fences, p);
        give(p, m.status, m.data, m.ndata);
        pending_free(p);
        break;
    }
    msg_fence_finish(&m);
    return 0;
}

static void answer_peer(struct pmix_server *s, uint32_t node, uint32_t id, uint32_t rank)
{
    pmix_proc_t proc;
    PMIX_LOAD_PROCID(&proc, s->serve.nspace, rank);
    struct pending *asked = xcalloc(1, sizeof *asked);
    *asked = (struct pending){.id = id, .nkey = node};
    pmix_status_t rc = PMIx_server_dmodex_request(&proc, on_committed, asked);
    if (rc != PMIX_SUCCESS) {
        free(asked);
        send_peer(s, node, PEER_ANSWERS, id, (uint32_t)rc, NULL, 0);
    }
}

static void hear_answer(struct pmix_server *s, uint32_t id, int status,
                        const struct unpack *u)
{
    struct pending *p;
    DL_SEARCH_SCALAR(s->modexes, p, id, id);
    if (!p)
        return;
    DL_DELETE(s->modexes, p);
    give(p, status, u->p, u->n);
    pending_free(p);
}

static int hear_peer(struct pmix_server *s, const struct frame *f, struct ddp_err *err)
{
    struct msg_peer m = {0};
    if (msg_peer_unpack(f, &m, err) < 0)
        return -1;
    struct unpack u = {.p = m.data, .n = m.ndata};
    unsigned what = unpack_u8(&u);
    uint32_t id = unpack_u32(&u), number = unpack_u32(&u);
    if (u.bad)
        return err_set(err, "a word of another PMIx server that is cut short");
    if (what == PEER_ASKS)
        answer_peer(s, m.node, id, number);
    else
        hear_answer(s, id, (int)number, &u);
    return 0;
}

int pmix_server_hear(struct pmix_server *s, const struct frame *f, struct ddp_err *err)
{
    struct msg_member m;
    if (f->type == MSG_FENCE)
        return hear_fence(s, f, err);
    if (f->type == MSG_PEER)
        return hear_peer(s, f, err);
    if (f->type != MSG_MEMBER || msg_member_unpack(f, &m, err) < 0)
        return err_set(err, "a frame '%s' is not for a PMIx server", msg_name(f->type));
    send_member(s, m.rank, MEMBER_ASKED);
    return 0;
}

/* --- life --------------------------------------------------------------------------- */

static int init_library(struct pmix_server *s, struct ddp_err *err)
{
    char name[PMIX_MAX_NSLEN];
    bool no = false, yes = true;
    pmix_rank_t rank = s->serve.node;
    snprintf(name, sizeof name, "%s-server", s->serve.nspace);
    void *list = PMIx_Info_list_start();
    PMIx_Info_list_add(list, PMIX_SERVER_NSPACE, name, PMIX_STRING);
    PMIx_Info_list_add(list, PMIX_SERVER_RANK, &rank, PMIX_PROC_RANK);
    PMIx_Info_list_add(list, PMIX_SERVER_TMPDIR, s->dir, PMIX_STRING);
    PMIx_Info_list_add(list, PMIX_SYSTEM_TMPDIR, s->dir, PMIX_STRING);
    PMIx_Info_list_add(list, PMIX_HOSTNAME, s->serve.host, PMIX_STRING);
    PMIx_Info_list_add(list, PMIX_SERVER_TOOL_SUPPORT, &no, PMIX_BOOL);
    PMIx_Info_list_add(list, PMIX_SERVER_SHARE_TOPOLOGY, &yes, PMIX_BOOL);
    pmix_data_array_t array = {0};
    pmix_status_t rc = PMIx_Info_list_convert(list, &array);
    PMIx_Info_list_release(list);
    if (rc == PMIX_SUCCESS)
        rc = PMIx_server_init(&module, array.array, array.size);
    s->inited = rc == PMIX_SUCCESS;
    PMIX_DATA_ARRAY_DESTRUCT(&array);
    return s->inited ? 0
                     : err_set(err, "libpmix does not start: %s", PMIx_Error_string(rc));
}

/* What ranks were told before this server was there must be what it would have told. */
static int check_environment(struct pmix_server *s, struct ddp_err *err)
{
    const struct {
        const char *name, *value;
    } told[] = {{"PMIX_SERVER_URI41", s->serve.uri},
                {"PMIX_SECURITY_MODE", CONTRACT_PMIX_SECURITY},
                {"PMIX_BFROP_BUFFER_TYPE", CONTRACT_PMIX_BUFFERS},
                {"PMIX_GDS_MODULE", CONTRACT_PMIX_STORE}};
    struct strv env = {0};
    pmix_proc_t proc;
    PMIX_LOAD_PROCID(&proc, s->serve.nspace, 0);
    if (PMIx_server_setup_fork(&proc, &env.v) != PMIX_SUCCESS)
        return err_set(err, "libpmix does not say what its clients need");
    while (env.v && env.v[env.n])
        env.n++;
    int rc = 0;
    for (size_t i = 0; i < ARRAY_LEN(told) && rc == 0; i++) {
        const char *want = strv_env_get(&env, told[i].name);
        if (want && strcmp(want, told[i].value) != 0)
            rc = err_set(err, "libpmix %s wants %s=%s, the ranks have '%s'",
                         PMIx_Get_version(), told[i].name, want, told[i].value);
    }
    strv_finish(&env);
    return rc;
}

static int make_dir(struct pmix_server *s, struct ddp_err *err)
{
    s->dir = xasprintf("%s/ddprun-mpi-XXXXXX", s->serve.tmpdir);
    if (mkdtemp(s->dir))
        return 0;
    err_errno(err, "cannot make a directory in '%s' for MPI's session files",
              s->serve.tmpdir);
    free(s->dir);
    s->dir = NULL;
    return -1;
}

struct pmix_server *pmix_server_create(struct loop *loop, struct link *link,
                                       struct msg_serve *serve, struct ddp_err *err)
{
    struct pmix_server *s = xcalloc(1, sizeof *s);
    *s = (struct pmix_server){.loop = loop, .link = link, .serve = *serve};
    *serve = (struct msg_serve){0};
    self = s;
    pthread_mutex_init(&s->lock, NULL);
    s->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake_fd >= 0)
        s->wake =
            event_new(loop_base(loop), s->wake_fd, EV_READ | EV_PERSIST, on_wake, s);
    if (!s->wake || event_add(s->wake, NULL) < 0)
        err_errno(err, "cannot make an event");
    else if (rankmap_read(&s->map, &s->serve.map, s->serve.nranks, err) == 0 &&
             make_dir(s, err) == 0 && init_library(s, err) == 0 &&
             pmix_world_register(&s->serve, &s->map, s->dir, err) == 0 &&
             check_environment(s, err) == 0) {
        pmix_gate_open();
        return s;
    }
    pmix_server_destroy(s);
    return NULL;
}

static int remove_entry(const char *path, const struct stat *st, int type,
                        struct FTW *ftw)
{
    remove(path);
    return 0;
}

/* The answer to a call that may never come: the process does not wait for it for ever. */
static struct {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool done;
} gone = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};

static void on_gone(pmix_status_t status, void *arg)
{
    pthread_mutex_lock(&gone.lock);
    gone.done = true;
    pthread_cond_signal(&gone.cond);
    pthread_mutex_unlock(&gone.lock);
}

static bool let_go(struct pmix_server *s)
{
    if (!pmix_gate_empties(now_ms() + GO_MS / 2))
        log_debug("a rank that is gone is still connected");
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += GO_MS / 1000; /* seconds are good enough */
    PMIx_server_deregister_nspace(s->serve.nspace, on_gone, NULL);
    pthread_mutex_lock(&gone.lock);
    while (!gone.done && pthread_cond_timedwait(&gone.cond, &gone.lock, &until) == 0)
        ;
    bool done = gone.done;
    pthread_mutex_unlock(&gone.lock);
    return done;
}

void pmix_server_destroy(struct pmix_server *s)
{
    /* libpmix ends with the process: its threads may still call, and find us */
    if (s->inited && !let_go(s))
        log_debug("libpmix does not let go of its ranks");
    if (s->dir)
        nftw(s->dir, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}
