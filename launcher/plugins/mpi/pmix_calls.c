/* launcher/plugins/mpi/pmix_calls.c - callbacks that run in libpmix's threads
 *
 * A callback copies its arguments, sends the copy's address to the loop through a pipe
 * and returns. The loop does the work and calls the completion function, which any thread
 * may do. Only on_finalized() waits for the loop.
 *
 * For libpmix 4.2: without a job_control callback, files of dead ranks are not removed;
 * the server frees the data of a fence, whatever libpmix's header says;
 * client_connected2 has no completion function.
 */
#include "launcher/plugins/mpi/pmix_impl.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/sock.h"

#include <poll.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <utlist.h>

/* ms: for the loop to handle a CALL_LEFT; for a lookup that does not wait to find what
 * another server has published; for one that waits */
enum { LEFT_MS = 2000, LOOKUP_MS = 1000, LOOKUP_WAIT_MS = 600000 };

/* libpmix's callbacks have no user argument. */
static struct pmix_server *self;

static eventfd_t unhandled; /* CALL_LEFTs; used by libpmix's one thread only */

static pmix_status_t post(struct pmix_call c)
{
    struct pmix_call *copy = xmemdup(&c, sizeof c);
    if (write(self->calls[1], &copy, sizeof copy) != sizeof copy)
        abort(); /* cannot fail: it waits while the pipe is full */
    return PMIX_SUCCESS;
}

static pmix_status_t on_connected(const pmix_proc_t *proc, void *object,
                                  pmix_info_t info[], size_t ninfo, pmix_op_cbfunc_t done,
                                  void *cbdata)
{
    post((struct pmix_call){.kind = CALL_JOINED, .rank = proc->rank});
    return PMIX_OPERATION_SUCCEEDED;
}

/* Waits here: a completion function that another thread calls sends the client its answer
 * before it marks it as finalized (libpmix before 6.1). If the client has gone by then,
 * libpmix takes it for crashed, and later fences do not wait for its rank. */
static pmix_status_t on_finalized(const pmix_proc_t *proc, void *object,
                                  pmix_op_cbfunc_t done, void *cbdata)
{
    int64_t deadline_ms = now_ms() + LEFT_MS;
    eventfd_t n;
    post((struct pmix_call){.kind = CALL_LEFT, .rank = proc->rank});
    unhandled++;
    while (unhandled > 0 && !atomic_load(&self->ends) &&
           sock_await(self->left_fd, POLLIN, deadline_ms) == 0 &&
           eventfd_read(self->left_fd, &n) == 0)
        unhandled -= n < unhandled ? n : unhandled;
    return PMIX_OPERATION_SUCCEEDED;
}

static pmix_status_t on_abort(const pmix_proc_t *proc, void *object, int status,
                              const char text[], pmix_proc_t procs[], size_t nprocs,
                              pmix_op_cbfunc_t done, void *cbdata)
{
    return post((struct pmix_call){.kind = CALL_ABORT,
                                   .rank = proc->rank,
                                   .status = status,
                                   .text = xstrdup(text),
                                   .answer.done = done,
                                   .cbdata = cbdata});
}

static bool all_own(const pmix_proc_t procs[], size_t n)
{
    size_t i = 0;
    while (i < n && pmix_is_own(self, &procs[i]))
        i++;
    return i == n;
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
    struct pmix_call c = {.kind = CALL_FENCE,
                          .status = local_status(info, ninfo),
                          .data = data,
                          .size = size,
                          .nranks = (uint32_t)nprocs,
                          .answer.give = give,
                          .cbdata = cbdata};
    if (!all_own(procs, nprocs)) {
        c.kind = CALL_RELATED;
        c.procs = xmemdup(procs, nprocs * sizeof *procs);
        c.nprocs = nprocs;
        c.nranks = 0;
        return post(c);
    }
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
    return post(
        (struct pmix_call){.kind = CALL_MODEX,
                           .rank = proc->rank,
                           .text = pmix_is_own(self, proc) ? NULL : xstrdup(proc->nspace),
                           .answer.give = give,
                           .cbdata = cbdata});
}

/* A modex request of another node about a local rank. */
struct modex_request {
    uint32_t node, id, rank;
};

static void on_committed(pmix_status_t status, char *data, size_t size, void *cbdata)
{
    struct modex_request *q = cbdata;
    post((struct pmix_call){.kind = CALL_ANSWER,
                            .rank = q->rank,
                            .status = status,
                            .data = size > 0 ? xmemdup(data, size) : NULL,
                            .size = size,
                            .node = q->node,
                            .id = q->id});
    free(q);
}

/* The value of a text in `info`, or NULL. */
static const char *text_in(const pmix_info_t info[], size_t n, const char *key)
{
    for (size_t i = 0; i < n; i++) {
        if (PMIX_CHECK_KEY(&info[i], key) && info[i].value.type == PMIX_STRING)
            return info[i].value.data.string;
    }
    return NULL;
}

static void take_app(struct msg_spawn *m, const pmix_app_t *app)
{
    const char *wdir = text_in(app->info, app->ninfo, PMIX_WDIR);
    struct spawn_program *p = &m->programs[m->nprograms++];
    *p = (struct spawn_program){
        .n = app->maxprocs > 0 ? (uint32_t)app->maxprocs : 1,
        .wdir = xstrdup(wdir ? wdir : app->cwd),
        .hosts = xstrdup(text_in(app->info, app->ninfo, PMIX_HOST)),
    };
    strv_push(&p->argv, app->cmd);
    if (app->argv && app->argv[0])
        strv_push_all(&p->argv, app->argv + 1);
    if (app->env && m->env.n == 0)
        strv_push_all(&m->env, app->env);
}

static pmix_status_t on_spawn(const pmix_proc_t *proc, const pmix_info_t info[],
                              size_t ninfo, const pmix_app_t apps[], size_t napps,
                              pmix_spawn_cbfunc_t done, void *cbdata)
{
    struct pmix_call c = {
        .kind = CALL_SPAWN, .rank = proc->rank, .answer.spawned = done, .cbdata = cbdata};
    if (napps == 0 || !apps[0].cmd)
        return PMIX_ERR_BAD_PARAM;
    c.spawn.programs = xcalloc(napps, sizeof *c.spawn.programs);
    for (size_t i = 0; i < napps; i++)
        take_app(&c.spawn, &apps[i]);
    /* of MPI_Comm_spawn, unless its MPI_Info says "ompi_non_mpi" */
    const char *port = strv_env_get(&c.spawn.env, "OMPI_PARENT_PORT");
    c.spawn.waits = port && *port;
    return post(c);
}

/* --- with ranks of other jobs ------------------------------------------------------- */

/* Within this job it needs no action. */
static pmix_status_t on_connect(const pmix_proc_t procs[], size_t nprocs,
                                const pmix_info_t info[], size_t ninfo,
                                pmix_op_cbfunc_t done, void *cbdata)
{
    if (all_own(procs, nprocs))
        return PMIX_OPERATION_SUCCEEDED;
    return post((struct pmix_call){.kind = CALL_RELATED,
                                   .connects = true,
                                   .procs = xmemdup(procs, nprocs * sizeof *procs),
                                   .nprocs = nprocs,
                                   .answer.done = done,
                                   .cbdata = cbdata});
}

static pmix_status_t on_disconnect(const pmix_proc_t procs[], size_t nprocs,
                                   const pmix_info_t info[], size_t ninfo,
                                   pmix_op_cbfunc_t done, void *cbdata)
{
    return PMIX_OPERATION_SUCCEEDED;
}

static struct pmix_name *name_of(const pmix_info_t *info)
{
    const pmix_value_t *v = &info->value;
    bool text = v->type == PMIX_STRING;
    struct pmix_name *n = xcalloc(1, sizeof *n);
    n->key = xstrndup(info->key, PMIX_MAX_KEYLEN);
    n->type = v->type;
    pack_bytes(&n->value, text ? v->data.string : v->data.bo.bytes,
               text ? strlen(v->data.string) + 1 : v->data.bo.size);
    return n;
}

/* Values of other types are not supported: no MPI publishes any. libpmix 4.2 does not
 * answer a rank whose callback fails: so that comes with the answer. */
static pmix_status_t on_publish(const pmix_proc_t *proc, const pmix_info_t info[],
                                size_t ninfo, pmix_op_cbfunc_t done, void *cbdata)
{
    struct pmix_call c = {
        .kind = CALL_PUBLISH, .rank = proc->rank, .answer.done = done, .cbdata = cbdata};
    struct pmix_name *n;
    bool once = false;
    for (size_t i = 0; i < ninfo; i++) {
        pmix_data_type_t type = info[i].value.type;
        if (PMIX_CHECK_KEY(&info[i], PMIX_PERSISTENCE))
            once = info[i].value.data.persist == PMIX_PERSIST_FIRST_READ;
        if (PMIX_CHECK_RESERVED_KEY(info[i].key))
            continue;
        bool text = type == PMIX_STRING && info[i].value.data.string;
        if (text || type == PMIX_BYTE_OBJECT) {
            n = name_of(&info[i]);
            LL_PREPEND(c.names, n);
        } else {
            c.status = PMIX_ERR_NOT_SUPPORTED;
        }
    }
    LL_FOREACH (c.names, n) {
        n->by = *proc;
        n->once = once;
    }
    return post(c);
}

static pmix_status_t on_lookup(const pmix_proc_t *proc, char **keys,
                               const pmix_info_t info[], size_t ninfo,
                               pmix_lookup_cbfunc_t found, void *cbdata)
{
    struct pmix_call c = {.kind = CALL_LOOKUP,
                          .rank = proc->rank,
                          .wait_ms = LOOKUP_MS,
                          .answer.found = found,
                          .cbdata = cbdata};
    int64_t limit_ms = LOOKUP_WAIT_MS;
    bool waits = false;
    for (size_t i = 0; i < ninfo; i++) {
        waits |= PMIX_CHECK_KEY(&info[i], PMIX_WAIT);
        if (PMIX_CHECK_KEY(&info[i], PMIX_TIMEOUT) && info[i].value.data.integer > 0)
            limit_ms = INT64_C(1000) * info[i].value.data.integer;
    }
    if (waits)
        c.wait_ms = limit_ms;
    strv_push_all(&c.keys, keys);
    return post(c);
}

static pmix_status_t on_unpublish(const pmix_proc_t *proc, char **keys,
                                  const pmix_info_t info[], size_t ninfo,
                                  pmix_op_cbfunc_t done, void *cbdata)
{
    struct pmix_call c = {.kind = CALL_UNPUBLISH,
                          .rank = proc->rank,
                          .answer.done = done,
                          .cbdata = cbdata};
    if (keys)
        strv_push_all(&c.keys, keys);
    return post(c);
}

/* --- the table ---------------------------------------------------------------------- */

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
    .disconnect = on_disconnect,
    .publish = on_publish,
    .lookup = on_lookup,
    .unpublish = on_unpublish,
    .job_control = on_control,
};

pmix_server_module_t *pmix_calls_begin(struct pmix_server *s)
{
    self = s;
    return &module;
}

void pmix_calls_end(struct pmix_server *s)
{
    atomic_store(&s->ends, true);
    eventfd_write(s->left_fd, 1);
}

pmix_status_t pmix_calls_ask(struct pmix_server *s, uint32_t node, uint32_t id,
                             uint32_t rank)
{
    pmix_proc_t proc;
    PMIX_LOAD_PROCID(&proc, s->serve.nspace, rank);
    struct modex_request *q = xcalloc(1, sizeof *q);
    *q = (struct modex_request){node, id, rank};
    pmix_status_t rc = PMIx_server_dmodex_request(&proc, on_committed, q);
    if (rc != PMIX_SUCCESS)
        free(q);
    return rc;
}

void pmix_calls_take(struct pmix_server *s,
                     void (*handle)(struct pmix_server *s, struct pmix_call *c))
{
    struct pmix_call *c;
    while (read(s->calls[0], &c, sizeof c) == sizeof c) {
        handle(s, c);
        free(c->text);
        free(c->data);
        free(c->ranks);
        free(c->procs);
        msg_spawn_finish(&c->spawn);
        strv_finish(&c->keys);
        free(c);
    }
}
