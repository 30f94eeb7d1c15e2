/* worker/ddp/replica.c - see replica.h */
#include "worker/ddp/replica.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/kernels/rng.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int replica_agree(struct ddp_group *group, int rc, int *culprit, struct ddp_err *err)
{
    int rank = ddp_group_rank(group), size = ddp_group_size(group);
    int32_t who = rc < 0 ? rank : size;
    struct ddp_err broken, first = {""};
    if (ddp_all_reduce(group, &who, 1, DDP_I32, DDP_MIN, &broken) < 0)
        goto fail;
    if (culprit)
        *culprit = who < size ? who : -1;
    if (who == size)
        return 0;
    if (who == rank)
        first = *err;
    if (ddp_broadcast(group, &first, sizeof first, DDP_U8, who, &broken) < 0)
        goto fail;
    first.text[sizeof first.text - 1] = '\0';
    return err_set(err, "%s", first.text);

fail: /* our own failure, if any, is more specific than the group's */
    if (culprit)
        *culprit = -1;
    return rc < 0 ? -1 : err_set(err, "%s", broken.text);
}

int replica_broadcast(struct ddp_group *group, struct model *model, struct optim *optim,
                      struct ddp_err *err)
{
    size_t n = model_param_count(model);
    if (ddp_broadcast(group, model_weights(model), n, DDP_F32, 0, err) < 0)
        return -1;
    size_t nbuffers;
    float *buffers = model_buffer_block(model, &nbuffers);
    if (nbuffers && ddp_broadcast(group, buffers, nbuffers, DDP_F32, 0, err) < 0)
        return -1;
    return replica_broadcast_optim(group, optim, err);
}

int replica_broadcast_optim(struct ddp_group *group, struct optim *optim,
                            struct ddp_err *err)
{
    for (int k = 0; k < OPTIM_STATES; k++) {
        float *whole = optim_whole(optim, k);
        if (whole && ddp_broadcast(group, whole, optim->n, DDP_F32, 0, err) < 0)
            return -1;
    }
    struct {
        uint64_t steps;
        float loss_scale;
        uint32_t good_steps;
    } counts = {optim->steps, optim->loss_scale, optim->good_steps};
    if (ddp_broadcast(group, &counts, sizeof counts, DDP_U8, 0, err) < 0)
        return -1;
    optim->steps = counts.steps;
    optim->loss_scale = counts.loss_scale;
    optim->good_steps = counts.good_steps;
    return 0;
}

int replica_average(struct ddp_group *group, struct model *model, struct ddp_err *err)
{
    size_t n;
    float *buffers = model_buffer_block(model, &n);
    if (n == 0 || ddp_group_size(group) == 1)
        return 0;
    return ddp_all_reduce(group, buffers, n, DDP_F32, DDP_AVG, err);
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

int replica_check(struct ddp_group *group, struct model *model, uint64_t *sum,
                  struct ddp_err *err)
{
    size_t n;
    const struct param *params = model_params(model, &n);
    return replica_check_block(group, model_weights(model), params, n, sum, err);
}

int replica_check_block(struct ddp_group *group, const float *weights,
                        const struct param *params, size_t n, uint64_t *sum,
                        struct ddp_err *err)
{
    int size = ddp_group_size(group), rc = 0;
    uint64_t *mine = xcalloc(n, sizeof *mine);
    uint64_t *all = xcalloc(n * (size_t)size, sizeof *all);
    *sum = 0;
    for (size_t i = 0; i < n; i++) {
        mine[i] = checksum(weights + params[i].offset, params[i].count, i);
        *sum = rng_mix(*sum ^ mine[i]);
    }
    if (ddp_all_gather(group, mine, all, n, DDP_I64, err) < 0)
        rc = -1;
    for (int r = 1; r < size && rc == 0; r++) {
        for (size_t i = 0; i < n && rc == 0; i++) {
            if (all[(size_t)r * n + i] != all[i])
                rc = err_set(err,
                             "'%s' of rank %d differs from rank 0's (checksums "
                             "%016" PRIx64 " and %016" PRIx64 ")",
                             params[i].name, r, all[(size_t)r * n + i], all[i]);
        }
    }
    free(mine);
    free(all);
    return rc;
}
