/* worker/ddp/reducer.c - see reducer.h
 *
 * The block in the arena: HEAD floats with the step's sums, then the gradients. The last
 * bucket of the plan begins at gradient 0; it is reduced together with the head, and
 * therefore started by reducer_finish(), when the loss is known. Nothing is lost by that:
 * there is no backward left to overlap with.
 *
 * Buckets are started in the plan's order on every rank, never by readiness, because a
 * group's collectives must come in one order.
 */
#include "worker/ddp/reducer.h"

#include "common/err.h"
#include "common/mem.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD = 16 }; /* floats: a cache line, so that gradients stay aligned */
_Static_assert(sizeof(struct step_sums) <= HEAD * sizeof(float), "the sums fit the head");

struct reducer {
    struct ddp_group *group; /* borrowed */
    int size;
    bool overlap;
    float *block;                  /* the arena's: head and gradients */
    float *grads;                  /* block + HEAD */
    size_t count;                  /* gradients */
    struct bucket *buckets;        /* owned */
    struct ddp_request **requests; /* owned, one a bucket; NULL: ended or not started */
    size_t nbuckets;
    size_t started, ended; /* buckets, in the plan's order */
    struct ddp_err err;    /* the first failure of the step */
    bool failed;
};

struct reducer *reducer_create(struct ddp_group *group, const struct model *model,
                               struct reducer_settings settings, struct ddp_err *err)
{
    size_t nparams;
    const struct param *params = model_params(model, &nparams);
    struct reducer *r = xcalloc(1, sizeof *r);
    r->group = group;
    r->size = ddp_group_size(group);
    r->overlap = settings.overlap;
    r->count = model_param_count(model);
    r->block = ddp_arena_alloc(group, (HEAD + r->count) * sizeof(float), err);
    if (!r->block) {
        free(r);
        return NULL;
    }
    r->grads = r->block + HEAD;
    r->buckets = xcalloc(nparams, sizeof *r->buckets);
    r->nbuckets = bucket_plan(params, nparams, settings.first_bytes / sizeof(float),
                              settings.cap_bytes / sizeof(float), r->buckets);
    r->requests = xcalloc(r->nbuckets, sizeof *r->requests);
    return r;
}

void reducer_destroy(struct reducer *r)
{
    if (!r)
        return;
    free(r->buckets);
    free(r->requests);
    free(r);
}

size_t reducer_buckets(const struct reducer *r)
{
    return r->overlap ? r->nbuckets : 1;
}

float *reducer_grads(struct reducer *r)
{
    return r->grads;
}

static void start_bucket(struct reducer *r)
{
    struct bucket b = r->buckets[r->started];
    bool last = r->started == r->nbuckets - 1;
    float *from = r->grads + b.offset - (last ? HEAD : 0);
    r->requests[r->started] = ddp_iall_reduce(r->group, from, b.count + (last ? HEAD : 0),
                                              DDP_F32, DDP_SUM, &r->err);
    r->failed = r->requests[r->started] == NULL;
    r->started++;
}

/* Give what is under way a push. */
static void make_progress(struct reducer *r)
{
    while (!r->failed && r->ended < r->started) {
        int done = 0;
        r->failed = ddp_test(r->requests[r->ended], &done, &r->err) < 0;
        if (!done || r->failed)
            return;
        r->ended++;
    }
}

void reducer_begin(struct reducer *r, bool idle)
{
    r->started = r->ended = 0;
    r->failed = false;
    if (idle)
        memset(r->grads, 0, r->count * sizeof(float));
}

void reducer_ready(size_t offset, size_t count, void *reducer)
{
    struct reducer *r = reducer;
    if (r->size == 1 || !r->overlap || r->failed)
        return;
    while (r->started < r->nbuckets - 1 && r->buckets[r->started].offset >= offset &&
           !r->failed)
        start_bucket(r);
    make_progress(r);
}

static int reduce_at_once(struct reducer *r, struct ddp_err *err)
{
    return ddp_all_reduce(r->group, r->block, HEAD + r->count, DDP_F32, DDP_SUM, err);
}

static int reduce_rest(struct reducer *r, struct ddp_err *err)
{
    while (!r->failed && r->started < r->nbuckets)
        start_bucket(r);
    while (!r->failed && r->ended < r->nbuckets) {
        r->failed = ddp_wait(r->requests[r->ended], &r->err) < 0;
        r->ended++;
    }
    return r->failed ? err_set(err, "%s", r->err.text) : 0;
}

int reducer_finish(struct reducer *r, struct step_sums *sums, struct ddp_err *err)
{
    if (r->size == 1)
        return 0;
    memset(r->block, 0, HEAD * sizeof(float));
    memcpy(r->block, sums, sizeof *sums);
    int rc = r->overlap ? reduce_rest(r, err) : reduce_at_once(r, err);
    memcpy(sums, r->block, sizeof *sums);
    return rc;
}
