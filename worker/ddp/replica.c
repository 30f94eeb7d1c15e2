/* worker/ddp/replica.c - see replica.h */
#include "worker/ddp/replica.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/kernels/rng.h"

#include <string.h>

enum { LATE_MS = 5000, TELL_MS = 60 * 1000 };

int replica_agree(struct ddp_group *group, int rc, int *culprit, struct ddp_err *err)
{
    int rank = ddp_group_rank(group), size = ddp_group_size(group), unwanted;
    int32_t who = rc < 0 ? rank : size;
    struct ddp_err broken, first = {"the call has failed"};
    culprit = culprit ? culprit : &unwanted;
    *culprit = -1;
    bool fine = ddp_all_reduce(group, &who, 1, DDP_I32, DDP_MIN, &broken) == 0;
    if (fine && who == size)
        return 0;
    if (who == rank && err)
        first = *err;
    if (!fine || ddp_broadcast(group, &first, sizeof first, DDP_U8, who, &broken) < 0)
        /* our own failure, if any, is more specific than the group's */
        return rc < 0 ? -1 : err_set(err, "%s", broken.text);
    *culprit = who;
    first.text[sizeof first.text - 1] = '\0';
    return err_set(err, "%s", first.text);
}

int replica_agree_late(struct ddp_group *group, int rc,
                       void (*on_late)(void *arg, int seconds), void *arg, int *culprit,
                       struct ddp_err *err)
{
    struct ddp_err ignored; /* a barrier that fails breaks the group */
    int64_t timeout = ddp_group_timeout(group), began = now_ms();
    int done = 0, turn_ms = LATE_MS;
    ddp_group_set_timeout(group, REPLICA_PATIENCE * timeout);
    struct ddp_request *r = ddp_ibarrier(group, &ignored);
    while (r && !done && ddp_wait_for(r, turn_ms, &done, &ignored) == 0) {
        if (!done && on_late)
            on_late(arg, (int)((now_ms() - began) / 1000));
        turn_ms = TELL_MS;
    }
    ddp_group_set_timeout(group, timeout);
    return replica_agree(group, rc, culprit, err);
}

struct replica replica_of(struct model *model, struct optim *optim)
{
    return (struct replica){.model = model->type->name,
                            .model_checksum = model->type->checksum,
                            .params = model->params,
                            .fields = model->buffers,
                            .nparams = model->nparams,
                            .nfields = model->nbuffers,
                            .weights = model->weights,
                            .buffers = model->buffer_block,
                            .floats = model->count,
                            .nbuffers = model->buffer_count,
                            .optim = optim};
}

int replica_broadcast(struct ddp_group *group, const struct replica *r,
                      struct ddp_err *err)
{
    struct optim *o = r->optim;
    TRY(ddp_broadcast(group, r->weights, r->floats, DDP_F32, 0, err));
    if (r->nbuffers)
        TRY(ddp_broadcast(group, r->buffers, r->nbuffers, DDP_F32, 0, err));
    for (int k = 0; k < OPTIM_STATES; k++) {
        float *whole = optim_whole(o, k);
        if (whole && ddp_broadcast(group, whole, o->n, DDP_F32, 0, err) < 0)
            return -1;
    }
    return ddp_broadcast(group, &o->counts, sizeof o->counts, DDP_U8, 0, err);
}

int replica_average(struct ddp_group *group, struct model *model, struct ddp_err *err)
{
    if (model->buffer_count == 0 || ddp_group_size(group) == 1)
        return 0;
    return ddp_all_reduce(group, model->buffer_block, model->buffer_count, DDP_F32,
                          DDP_AVG, err);
}

/* Each bit of each float counts, and so does its place. */
static uint64_t checksum(const float *v, size_t n, uint64_t seed)
{
    uint64_t sum = rng_key(seed, n);
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &v[i], sizeof bits);
        sum = rng_mix(sum ^ bits);
    }
    return sum;
}

int replica_compare(struct ddp_group *group, const uint64_t *mine, size_t n, int *other,
                    size_t *i, struct ddp_err *err)
{
    int size = ddp_group_size(group);
    OWNED uint64_t *all = xcalloc(n * (size_t)size, sizeof *all);
    TRY(ddp_all_gather(group, mine, all, n, DDP_I64, err));
    *other = 0;
    for (size_t at = n; at < n * (size_t)size && *other == 0; at++) {
        *i = at % n;
        *other = all[at] != all[*i] ? (int)(at / n) : 0;
    }
    return 0;
}

int replica_check(struct ddp_group *group, const struct replica *r, uint64_t *sum,
                  struct ddp_err *err)
{
    size_t n = r->nparams, i;
    OWNED uint64_t *mine = xcalloc(n, sizeof *mine);
    int other;
    *sum = 0;
    for (i = 0; i < n; i++) {
        mine[i] = checksum(r->weights + r->params[i].offset, r->params[i].count, i);
        *sum = rng_mix(*sum ^ mine[i]);
    }
    TRY(replica_compare(group, mine, n, &other, &i, err));
    return other == 0 ? 0
                      : err_set(err, "'%s' of rank %d differs from rank 0's",
                                r->params[i].name, other);
}
