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

enum { LEFT_MS = 2000 }; /* for the loop to handle a CALL_LEFT */

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
    return post((struct pmix_call){
        .kind = CALL_MODEX, .rank = proc->rank, .answer.give = give, .cbdata = cbdata});
}

/* A modex request of another node about a local rank. */
struct modex_request {
    uint32_t node, id;
};

static void on_committed(pmix_status_t status, char *data, size_t size, void *cbdata)
{
    struct modex_request *q = cbdata;
    post((struct pmix_call){.kind = CALL_ANSWER,
                            .status = status,
                            .data = size > 0 ? xmemdup(data, size) : NULL,
                            .size = size,
                            .node = q->node,
                            .id = q->id});
    free(q);
}

static pmix_status_t on_spawn(const pmix_proc_t *proc, const pmix_info_t info[],
                              size_t ninfo, const pmix_app_t apps[], size_t napps,
                              pmix_spawn_cbfunc_t done, void *cbdata)
{
    post((struct pmix_call){.kind = CALL_ABORT,
                            .rank = proc->rank,
                            .status = 0,
                            .text =
                                xstrdup(napps > 0 && apps[0].cmd ? apps[0].cmd : "?")});
    done(PMIX_ERR_NOT_SUPPORTED, (char[PMIX_MAX_NSLEN + 1]){""}, cbdata);
    return PMIX_SUCCESS;
}

/* Connect and disconnect: within one job they need no action. */
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
    *q = (struct modex_request){node, id};
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
        free(c);
    }
}
