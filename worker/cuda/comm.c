/* worker/cuda/comm.c - see comm.h */
#include "worker/cuda/comm.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/ddp/replica.h"
#include "worker/group/nccl_join.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { OLDEST = 21800, WATCH_TAG = 0x7ffffff0 };

struct comm {
    struct ddp_group *group; /* borrowed */
    int rank, size;
    int lanes, devices[COMM_LANES];
    void *nccl[COMM_LANES];
    struct offload *ending[COMM_LANES]; /* each runs nccl_end(); NULL: none */
    /* A receive from the next rank, which never sends: it fails when a rank has died. */
    struct ddp_request *watch;
    uint64_t calls;
    bool grouped;         /* between comm_begin() and comm_end() */
    bool failed, unended; /* unended: no thread could be created to end a communicator */
};

static int open_library(struct ddp_err *err)
{
    TRY(nccl_load(err));
    return nccl_api.number >= OLDEST
               ? 0
               : err_set(err, "%s: 2.18 or newer is needed", nccl_api.name);
}

static void note(struct comm *c, const char *what, int rc)
{
    char full[160];
    struct ddp_err err;
    snprintf(full, sizeof full, "rank %d: %s, %s", c->rank, nccl_api.name, what);
    if (nccl_check(rc, full, &err) == 0)
        return;
    c->failed = true;
    cuda_fail("%s", err.text);
}

/* A rank's device, as in the error of two ranks on one: "GPU 0000:01:00.0 of node1". */
struct seat {
    char name[128];
};

static int take_seats(const struct comm *c, struct seat seats[COMM_LANES],
                      struct ddp_err *err)
{
    char host[64] = "", bus[32] = "";
    gethostname(host, sizeof host - 1);
    cuda_doing("which GPU");
    for (int i = 0; i < c->lanes; i++) {
        CUDA(cudaDeviceGetPCIBusId(bus, sizeof bus, c->devices[i]));
        snprintf(seats[i].name, sizeof seats[i].name, "GPU %s of %s", bus, host);
    }
    return cuda_outcome(err);
}

/* A rank's own devices differ. */
static int check_seats(const struct comm *c, const struct seat *all, struct ddp_err *err)
{
    for (int i = 0; i < c->size * c->lanes; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(all[i].name, all[k].name) == 0)
                return err_set(err,
                               "ranks %d and %d are both on %s, and NCCL wants one each; "
                               "start fewer ranks there",
                               k / c->lanes, i / c->lanes, all[i].name);
    return 0;
}

/* Before NCCL is called: can all ranks call it? */
static int meet(struct comm *c, int rc, struct ddp_err *err)
{
    struct seat mine[COMM_LANES] = {0};
    if (rc == 0)
        rc = open_library(err);
    if (rc == 0)
        rc = take_seats(c, mine, err);
    if (rc < 0)
        err_prefix(err, "rank %d", c->rank);
    TRY(replica_agree(c->group, rc, NULL, err));
    size_t lanes = (size_t)c->lanes;
    OWNED struct seat *all = xcalloc((size_t)c->size * lanes, sizeof *all);
    TRY(ddp_all_gather(c->group, mine, all, lanes * sizeof *all, DDP_U8, err));
    return check_seats(c, all, err);
}

/* ---- joining ---- */

static void use_device(void *device)
{
    cudaSetDevice((int)(intptr_t)device); /* the current device is per thread */
}

static int join(struct comm *c, struct ddp_err *err)
{
    int next = (c->rank + 1) % c->size;
    c->watch = ddp_irecv(c->group, NULL, 0, next, WATCH_TAG, err);
    if (!c->watch)
        return -1;
    for (int i = 0; i < c->lanes; i++)
        TRY(nccl_join(c->group, use_device, (void *)(intptr_t)c->devices[i], &c->nccl[i],
                      err));
    return 0;
}

struct comm *comm_create(struct ddp_group *group, const int *devices, int lanes, int rc,
                         struct ddp_err *err)
{
    struct comm *c = xcalloc(1, sizeof *c);
    c->group = group;
    c->lanes = lanes;
    memcpy(c->devices, devices, (size_t)lanes * sizeof *devices);
    c->rank = ddp_group_rank(group);
    c->size = ddp_group_size(group);
    if (meet(c, rc, err) < 0 || join(c, err) < 0) {
        comm_destroy(c, true);
        return NULL;
    }
    return c;
}

/* ---- the end ---- */

/* Ends all lanes at once: freeing one's memory waits for the other's kernels. The
 * abort returns only when no graph has a collective of the communicator any more, so
 * graphs are freed after this call, before comm_destroy() (NCCL's commDestroySync() waits
 * for localPersistentRefs). */
void comm_give_up(struct comm *c)
{
    if (!c)
        return;
    c->failed = true;
    for (int i = 0; i < c->lanes; i++) {
        if (!c->nccl[i])
            continue;
        c->ending[i] = nccl_end(&c->nccl[i], true);
        c->unended = c->unended || !c->ending[i];
    }
}

bool comm_destroy(struct comm *c, bool under_way)
{
    enum { ENDS_WITHIN_MS = 10000 };
    if (!c)
        return true;
    if (c->watch)
        ddp_cancel(c->watch, &(int){0}, &(struct ddp_err){""});
    if (c->failed || under_way)
        comm_give_up(c);
    bool ended = !c->unended;
    int64_t deadline_ms = now_ms() + ENDS_WITHIN_MS;
    for (int i = 0; i < c->lanes; i++) {
        if (c->nccl[i])
            nccl_api.destroy(c->nccl[i]);
        if (c->ending[i] && !offload_wait(c->ending[i], deadline_ms - now_ms()))
            ended = false;
        offload_end(c->ending[i]);
    }
    free(c);
    return ended;
}

/* Counts a collective that was launched; an error has its name and size. */
static void put_call(struct comm *c, const char *name, size_t count, int rc)
{
    char what[64];
    c->calls++;
    snprintf(what, sizeof what, "%s #%llu of %zu numbers", name,
             (unsigned long long)c->calls, count);
    note(c, what, rc);
}

#define CALL(c, name, count, call) \
    (cuda_failed() ? (void)0 : put_call(c, name, count, nccl_api.call))

void comm_all_reduce(struct comm *c, int lane, void *data, size_t count,
                     enum ddp_type type, cudaStream_t stream)
{
    CALL(c, "all_reduce", count,
         all_reduce(data, data, count, nccl_types[type], nccl_ops[DDP_SUM], c->nccl[lane],
                    stream));
}

void comm_reduce_scatter(struct comm *c, int lane, float *data, size_t each,
                         cudaStream_t stream)
{
    CALL(c, "reduce_scatter", each * (size_t)c->size,
         reduce_scatter(data, data + (size_t)c->rank * each, each, nccl_types[DDP_F32],
                        nccl_ops[DDP_SUM], c->nccl[lane], stream));
}

void comm_broadcast(struct comm *c, int lane, float *data, size_t count,
                    cudaStream_t stream)
{
    CALL(c, "broadcast", count,
         broadcast(data, data, count, nccl_types[DDP_F32], 0, c->nccl[lane], stream));
}

void comm_begin(struct comm *c)
{
    c->grouped = !cuda_failed();
    if (c->grouped)
        note(c, "ncclGroupStart", nccl_api.begin());
}

void comm_end(struct comm *c)
{
    if (c->grouped) /* also after a failure: NCCL would only collect this thread's calls */
        note(c, "ncclGroupEnd", nccl_api.end());
}

void comm_gather_buckets(struct comm *c, int lane, float *block, size_t first,
                         const struct bucket *buckets, size_t n, cudaStream_t stream)
{
    comm_begin(c);
    for (size_t i = 0; i < n; i++) {
        size_t size = (size_t)c->size, each = buckets[i].count / size;
        float *data = block + (buckets[i].offset - first);
        if (each > 0)
            CALL(c, "all_gather", each * size,
                 all_gather(data + (size_t)c->rank * each, data, each,
                            nccl_types[DDP_F32], c->nccl[lane], stream));
    }
    comm_end(c);
}

/* Checks the ranks, and NCCL itself. */
static void look_around(struct comm *c)
{
    int done = 0;
    struct ddp_err why;
    if (ddp_test(c->watch, &done, &why) < 0) {
        c->watch = NULL;
        cuda_fail("%s: %s", cuda_doing_now(), why.text);
    }
    for (int i = 0; i < c->lanes; i++) {
        int state = 0, rc = nccl_api.async_error(c->nccl[i], &state);
        note(c, cuda_doing_now(), rc == 0 ? state : rc);
    }
}

static void await(struct comm *c, cudaEvent_t event, int64_t timeout_ms)
{
    enum { SPIN_US = 200, LOOK_MS = 20 };
    int64_t began = now_ns(), looked = began;
    while (!cuda_failed()) {
        cudaError_t rc = cudaEventQuery(event);
        int64_t now = now_ns();
        if (rc != cudaErrorNotReady) {
            cuda_note(rc);
            return;
        }
        cudaGetLastError(); /* a check of a launch would find it */
        if (c && now - looked > LOOK_MS * INT64_C(1000000)) {
            looked = now;
            look_around(c);
        }
        if (now - began > timeout_ms * INT64_C(1000000))
            cuda_fail("%s: rank %d has waited %g s for its GPU", cuda_doing_now(),
                      c ? c->rank : 0, (double)timeout_ms / 1000);
        if (now - began > SPIN_US * INT64_C(1000))
            nanosleep(&(struct timespec){0, 20000}, NULL);
    }
}

void comm_await(struct comm *c, cudaEvent_t event, int64_t timeout_ms)
{
    if (cuda_failed())
        return;
    if (c && c->failed) {
        cuda_fail("%s: NCCL was ended by an earlier error", cuda_doing_now());
        return;
    }
    await(c, event, timeout_ms);
    if (cuda_failed())
        comm_give_up(c);
}
