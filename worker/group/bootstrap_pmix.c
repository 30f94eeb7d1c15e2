/* worker/group/bootstrap_pmix.c - PMIx, as a client
 *
 * libpmix is loaded when it is needed: our library must load without it, and it has to
 * be the one that MPI in the same process uses. PMIx counts its initialisations, so
 * ours and MPI's do not conflict. We finalise at process exit, since mpirun takes a
 * client that exits without it for crashed.
 */
#include "worker/group/bootstrap.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/offload.h"
#include "common/sock.h"
#include "common/symbols.h"

#include <fcntl.h>
#include <pmix.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    void *library; /* never closed: its threads run in it */
    pid_t pid;     /* of the process that has joined; 0: none */
    pmix_proc_t self;
    pmix_status_t (*init)(pmix_proc_t *proc, pmix_info_t info[], size_t n);
    pmix_status_t (*finalize)(const pmix_info_t info[], size_t n);
    pmix_status_t (*put)(pmix_scope_t scope, const char key[], pmix_value_t *value);
    pmix_status_t (*commit)(void);
    pmix_status_t (*fence)(const pmix_proc_t procs[], size_t nprocs,
                           const pmix_info_t info[], size_t ninfo, pmix_op_cbfunc_t done,
                           void *arg);
    pmix_status_t (*get)(const pmix_proc_t *proc, const char key[],
                         const pmix_info_t info[], size_t n, pmix_value_t **value);
    const char *(*text)(pmix_status_t status);
} pmix;

static int load(struct ddp_err *err)
{
    static const struct symbol wanted[] = {
        {"PMIx_Init", &pmix.init},         {"PMIx_Put", &pmix.put},
        {"PMIx_Commit", &pmix.commit},     {"PMIx_Fence_nb", &pmix.fence},
        {"PMIx_Get", &pmix.get},           {"PMIx_Error_string", &pmix.text},
        {"PMIx_Finalize", &pmix.finalize},
    };
    pmix.library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_GLOBAL);
    if (!pmix.library)
        return err_set(err,
                       "the launcher offers PMIx, but libpmix.so.2 is not to be had "
                       "here; set MASTER_ADDR and MASTER_PORT to rank 0's host and a "
                       "port there");
    const char *missing = symbols_find(pmix.library, wanted, ARRAY_LEN(wanted));
    return missing ? err_set(err, "libpmix.so.2 has no %s", missing) : 0;
}

static void leave(void)
{
    if (pmix.pid == getpid()) /* libpmix's threads are not in a forked child */
        pmix.finalize(NULL, 0);
}

static int failed(pmix_status_t rc, const char *what, const char *late,
                  struct ddp_err *err)
{
    return err_set(err, "the launcher's PMIx does not %s: %s", what,
                   rc == PMIX_ERR_TIMEOUT ? late : pmix.text(rc));
}

struct init {
    pmix_proc_t self;
    pmix_status_t status;
};

static void call_init(void *copy)
{
    struct init *call = copy;
    call->status = pmix.init(&call->self, NULL, 0);
}

/* PMIx_Init() has no time limit, and a server that is stopped does not answer. */
static int join(struct bootstrap *m, struct ddp_err *err)
{
    enum { POLL_MS = 20 };
    const struct init call = {.status = PMIX_ERR_TIMEOUT}, *done;
    TRY(load(err));
    struct offload *a = offload_begin(call_init, &call, sizeof call, err);
    if (!a)
        return -1;
    do {
        int64_t began_ms = now_ms();
        done = offload_wait(a, POLL_MS);
        limit_extend(&m->deadline_ms, began_ms, POLL_MS);
    } while (!done && now_ms() < m->deadline_ms);
    pmix_status_t rc = done ? done->status : PMIX_ERR_TIMEOUT;
    if (rc == PMIX_SUCCESS)
        pmix.self = done->self;
    offload_end(a);
    if (rc != PMIX_SUCCESS)
        return failed(rc, "let us in", "it does not answer", err);
    pmix.pid = getpid();
    atexit(leave);
    return 0;
}

/* In a thread of libpmix. */
static void on_fence(pmix_status_t status, void *fd)
{
    if (write((int)(intptr_t)fd, &status, sizeof status) < 0)
        abort(); /* cannot fail: nothing else is in the pipe */
}

/* PMIx has a time limit of its own, but that goes on while this process is stopped. */
static pmix_status_t await_fence(struct bootstrap *m)
{
    int fds[2];
    pmix_proc_t all = {.rank = PMIX_RANK_WILDCARD};
    pmix_info_t collect = {.key = PMIX_COLLECT_DATA};
    collect.value.type = PMIX_BOOL;
    collect.value.data.flag = true;
    snprintf(all.nspace, sizeof all.nspace, "%s", pmix.self.nspace);
    if (pipe2(fds, O_CLOEXEC) < 0)
        return PMIX_ERR_OUT_OF_RESOURCE;
    pmix_status_t rc =
        pmix.fence(&all, 1, &collect, 1, on_fence, (void *)(intptr_t)fds[1]);
    if (rc == PMIX_SUCCESS && sock_await_extend(fds[0], POLLIN, &m->deadline_ms) < 0)
        return PMIX_ERR_TIMEOUT; /* the pipe stays: the status may still come */
    if (rc == PMIX_SUCCESS && read(fds[0], &rc, sizeof rc) < 0)
        rc = PMIX_ERROR;
    close(fds[0]);
    close(fds[1]);
    return rc == PMIX_OPERATION_SUCCEEDED ? PMIX_SUCCESS : rc;
}

int bootstrap_share_pmix(struct bootstrap *m, char value[BOOTSTRAP_VALUE],
                         struct ddp_err *err)
{
    char key[32];
    bootstrap_key(m, key);
    if (!pmix.pid && join(m, err) < 0)
        return -1;
    if ((int)pmix.self.rank != m->rank)
        return err_set(err, "this is rank %d of the group, but rank %u to PMIx", m->rank,
                       pmix.self.rank);
    pmix_value_t own = {.type = PMIX_STRING}, *got = NULL;
    own.data.string = value;
    pmix_status_t rc = PMIX_SUCCESS;
    if (m->rank == 0)
        rc = pmix.put(PMIX_GLOBAL, key, &own);
    if (rc == PMIX_SUCCESS)
        rc = pmix.commit();
    /* the fence carries rank 0's value: under Open MPI 4.1.2 ranks on other hosts cannot
     * get it afterwards */
    if (rc == PMIX_SUCCESS)
        rc = await_fence(m);
    int64_t left = m->deadline_ms - now_ms();
    pmix_info_t limit = {.key = PMIX_TIMEOUT}; /* s */
    limit.value.type = PMIX_INT;
    limit.value.data.integer = left > 1000 ? (int)(left / 1000) : 1;
    pmix_proc_t first = {.rank = 0};
    snprintf(first.nspace, sizeof first.nspace, "%s", pmix.self.nspace);
    if (rc == PMIX_SUCCESS)
        rc = pmix.get(&first, key, &limit, 1, &got);
    if (rc != PMIX_SUCCESS)
        return failed(rc, "carry rank 0's address", "not all ranks have joined in time",
                      err);
    bool fits = got->type == PMIX_STRING && strlen(got->data.string) < BOOTSTRAP_VALUE;
    if (fits)
        memmove(value, got->data.string, strlen(got->data.string) + 1);
    /* `got` is left: to free it takes a macro of libpmix's own allocator, and it is small
     * and had once a group */
    return fits ? 0 : err_set(err, "the launcher's PMIx gives something else");
}
