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
#include "common/symbols.h"

#include <pmix.h>
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
                           const pmix_info_t info[], size_t ninfo);
    pmix_status_t (*get)(const pmix_proc_t *proc, const char key[],
                         const pmix_info_t info[], size_t n, pmix_value_t **value);
    const char *(*text)(pmix_status_t status);
} pmix;

static int load(struct ddp_err *err)
{
    static const struct symbol wanted[] = {
        {"PMIx_Init", &pmix.init},         {"PMIx_Put", &pmix.put},
        {"PMIx_Commit", &pmix.commit},     {"PMIx_Fence", &pmix.fence},
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

struct call {
    pmix_proc_t self; /* what PMIx_Init() returns */
    int rank;
    char key[32], value[BOOTSTRAP_VALUE]; /* given by rank 0, returned on all */
    pmix_status_t status;
};

/* In a thread, until the group's deadline: most calls of PMIx have no time limit, and a
 * server that is stopped does not answer. */
static int call_in_time(struct bootstrap *m, void (*fn)(void *copy), struct call *call,
                        struct ddp_err *err)
{
    enum { POLL_MS = 20 };
    const struct call *done;
    struct offload *a = offload_begin(fn, call, sizeof *call, err);
    if (!a)
        return -1;
    do {
        int64_t began_ms = now_ms();
        done = offload_wait(a, POLL_MS);
        limit_extend(&m->deadline_ms, began_ms, POLL_MS);
    } while (!done && now_ms() < m->deadline_ms);
    if (done)
        *call = *done;
    else
        call->status = PMIX_ERR_TIMEOUT;
    offload_end(a);
    return 0;
}

static void call_init(void *copy)
{
    struct call *call = copy;
    call->status = pmix.init(&call->self, NULL, 0);
}

static int join(struct bootstrap *m, struct ddp_err *err)
{
    struct call call = {0};
    if (load(err) < 0 || call_in_time(m, call_init, &call, err) < 0)
        return -1;
    if (call.status != PMIX_SUCCESS)
        return failed(call.status, "let us in", "it does not answer", err);
    pmix.self = call.self;
    pmix.pid = getpid();
    atexit(leave);
    return 0;
}

static pmix_status_t exchange(struct call *call)
{
    pmix_proc_t all = {.rank = PMIX_RANK_WILDCARD}, first = {.rank = 0};
    pmix_info_t collect = {.key = PMIX_COLLECT_DATA};
    pmix_value_t own = {.type = PMIX_STRING}, *got = NULL;
    pmix_status_t rc = PMIX_SUCCESS;
    snprintf(all.nspace, sizeof all.nspace, "%s", pmix.self.nspace);
    snprintf(first.nspace, sizeof first.nspace, "%s", pmix.self.nspace);
    own.data.string = call->value;
    collect.value.type = PMIX_BOOL;
    collect.value.data.flag = true;
    if (call->rank == 0)
        rc = pmix.put(PMIX_GLOBAL, call->key, &own);
    if (rc == PMIX_SUCCESS)
        rc = pmix.commit();
    /* the fence carries rank 0's value: under Open MPI 4.1.2 ranks on other hosts cannot
     * get it afterwards */
    if (rc == PMIX_SUCCESS)
        rc = pmix.fence(&all, 1, &collect, 1);
    if (rc == PMIX_SUCCESS)
        rc = pmix.get(&first, call->key, NULL, 0, &got);
    if (rc != PMIX_SUCCESS)
        return rc;
    /* `got` is left: to free it takes a macro of libpmix's own allocator, and it is small
     * and had once a group */
    if (got->type != PMIX_STRING || strlen(got->data.string) >= sizeof call->value)
        return PMIX_ERR_TYPE_MISMATCH;
    strcpy(call->value, got->data.string);
    return PMIX_SUCCESS;
}

static void call_exchange(void *copy)
{
    struct call *call = copy;
    call->status = exchange(call);
}

int bootstrap_share_pmix(struct bootstrap *m, char value[BOOTSTRAP_VALUE],
                         struct ddp_err *err)
{
    struct call call = {.rank = m->rank};
    if (!pmix.pid && join(m, err) < 0)
        return -1;
    if ((int)pmix.self.rank != m->rank)
        return err_set(err, "this is rank %d of the group, but rank %u to PMIx", m->rank,
                       pmix.self.rank);
    bootstrap_key(m, call.key);
    memcpy(call.value, value, sizeof call.value);
    TRY(call_in_time(m, call_exchange, &call, err));
    if (call.status != PMIX_SUCCESS)
        return failed(call.status, "carry rank 0's address",
                      "not all ranks have joined in time", err);
    memcpy(value, call.value, sizeof call.value);
    return 0;
}
