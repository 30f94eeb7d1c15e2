/* worker/gpu/libnccl.c - see libnccl.h */
#include "worker/gpu/libnccl.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/symbols.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>

#define SYMBOL(type, symbol, name, parameters) {"nccl" #symbol, &nccl_api.name},

struct nccl_api nccl_api;

const int nccl_types[] = {[DDP_F32] = 7, [DDP_F64] = 8, [DDP_I32] = 2,  [DDP_I64] = 4,
                          [DDP_U8] = 1,  [DDP_F16] = 6, [DDP_BF16] = 9, [DDP_I8] = 0};
const int nccl_ops[] = {
    [DDP_SUM] = 0, [DDP_PRODUCT] = 1, [DDP_MAX] = 2,  [DDP_MIN] = 3,
    [DDP_AVG] = 4, [DDP_BAND] = -1,   [DDP_BOR] = -1, [DDP_BXOR] = -1};

static int ask_version(struct ddp_err *err)
{
    int rc = nccl_api.version(&nccl_api.number), v = nccl_api.number;
    snprintf(nccl_api.name, sizeof nccl_api.name, "NCCL %d.%d.%d", v / 10000,
             v / 100 % 100, v % 100);
    return nccl_check(rc, "ncclGetVersion", err);
}

int nccl_load(struct ddp_err *err)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static const struct symbol optional = {"ncclGetLastError", &nccl_api.last_error};
    static const struct symbol names[] = {NCCL_FUNCTIONS(SYMBOL)};
    int rc = 0;
    pthread_mutex_lock(&lock);
    if (!nccl_api.library) {
        void *library = dlopen("libnccl.so.2", RTLD_NOW);
        const char *missing =
            library ? symbols_find(library, names, ARRAY_LEN(names)) : NULL;
        if (library)
            symbols_find(library, &optional, 1);
        if (!library)
            rc = err_set(err, "NCCL cannot be loaded: %.300s", dlerror());
        else
            rc =
                missing ? err_set(err, "this NCCL has no %s", missing) : ask_version(err);
        nccl_api.library = rc == 0 ? library : NULL;
    }
    pthread_mutex_unlock(&lock);
    return rc;
}

int nccl_check(int rc, const char *what, struct ddp_err *err)
{
    if (rc == 0 || rc == NCCL_IN_PROGRESS)
        return 0;
    const char *more = nccl_api.last_error ? nccl_api.last_error(NULL) : NULL;
    return err_set(err, "%s: %s%s%.200s", what, nccl_api.error_text(rc),
                   more && *more ? ": " : "", more ? more : "");
}

/* ncclCommDestroy() or ncclCommAbort(). */
struct ending {
    int (*call)(void *comm);
    void *context, *comm;
};

static void call_end(void *copy)
{
    const struct ending *e = copy;
    cuda_use_context(e->context);
    e->call(e->comm);
}

struct offload *nccl_end(void **comm, bool abort)
{
    struct ddp_err ignored;
    struct ending e = {abort ? nccl_api.abort : nccl_api.destroy, cuda_context(), *comm};
    *comm = NULL;
    return e.comm ? offload_begin(call_end, &e, sizeof e, &ignored) : NULL;
}
