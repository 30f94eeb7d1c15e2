/* worker/ddp/parallel_check.c - what ranks give to ddp_parallel_create(): can it be used,
 * and is it the same on all ranks?
 */
#include "worker/ddp/device.h"

#include "common/err.h"
#include "common/fnv.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/ddp/replica.h"
#include "worker/safetensors.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { PADDING = 16 }; /* floats that a parameter may get in its block */

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

int parallel_check_names(const struct ddp_param *params, size_t n, struct ddp_err *err)
{
    OWNED const char **names = xcalloc(n, sizeof *names);
    for (size_t i = 0; i < n; i++) {
        const struct ddp_param *param = &params[i];
        if (!param->name)
            return err_set(err, "parameter %zu has no name: a checkpoint needs one", i);
        if (!safetensors_can_name(param->name) || strncmp(param->name, "optim.", 6) == 0)
            return err_set(err,
                           "parameter %zu cannot be called '%s' in a checkpoint: names "
                           "are UTF-8 and do not begin with 'optim.' or '__'",
                           i, param->name);
        if (param->count > INT_MAX)
            return err_set(err, "'%s' is too large for a checkpoint: split it",
                           param->name);
        names[i] = param->name;
    }
    qsort(names, n, sizeof *names, by_text);
    for (size_t i = 1; i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return err_set(
                err, "two parameters are called '%s': a checkpoint needs a name for each",
                names[i]);
    return 0;
}

static int by_weight(const void *a, const void *b)
{
    const float *x = (*(const struct ddp_param *const *)a)->weight;
    const float *y = (*(const struct ddp_param *const *)b)->weight;
    return (x > y) - (x < y);
}

/* Refuses parameters whose weights, in the caller's memory, overlap. One without elements
 * overlaps none. */
static int check_overlap(const struct ddp_param *params, size_t n, struct ddp_err *err)
{
    OWNED const struct ddp_param **own = xcalloc(n, sizeof *own);
    size_t nown = 0;
    for (size_t i = 0; i < n; i++)
        if (params[i].weight && params[i].count > 0)
            own[nown++] = &params[i];
    qsort(own, nown, sizeof *own, by_weight);
    for (size_t i = 1; i < nown; i++) {
        const struct ddp_param *a = own[i - 1], *b = own[i];
        if (b->weight < a->weight + a->count)
            return err_set(
                err,
                "parameters %zu and %zu have the same weights: pass them once, "
                "with the sum of the gradients",
                (size_t)((a < b ? a : b) - params), (size_t)((a < b ? b : a) - params));
    }
    return 0;
}

static int check_params(const struct ddp_param *params, size_t n, struct ddp_err *err)
{
    size_t room = SIZE_MAX / sizeof(float);
    if (n == 0)
        return err_set(err, "there are no parameters");
    for (size_t i = 0; i < n; room -= params[i++].count + PADDING) {
        if (room < PADDING || params[i].count > room - PADDING)
            return err_set(err, "parameter %zu has %zu elements: more than memory has", i,
                           params[i].count);
    }
    return check_overlap(params, n, err);
}

static int check_options(const struct ddp_parallel_options *o, struct ddp_err *err)
{
    const struct {
        const char *name;
        float value, most;
    } parts[] = {{"momentum", o->momentum, FLT_MAX},
                 {"decay", o->decay, FLT_MAX},
                 {"clip_norm", o->clip_norm, INFINITY}};
    if (!optim_find(o->optimiser))
        return err_set(err, "no optimiser '%s': sgd, adam, adamw or adadelta",
                       o->optimiser);
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        if (!(parts[i].value >= 0 && parts[i].value <= parts[i].most)) /* nor NaN */
            return err_set(err, "%s is %g: it must be at least 0%s", parts[i].name,
                           (double)parts[i].value,
                           parts[i].most < INFINITY ? ", and finite" : "");
    if (!(o->beta2 >= 0 && o->beta2 < 1))
        return err_set(err, "beta2 is %g: from 0 to below 1", (double)o->beta2);
    if (!(o->ema >= 0 && o->ema < 1))
        return err_set(err, "ema is %g: from 0 to below 1", (double)o->ema);
    if (o->cuda && o->buckets_by_time)
        return err_set(err, "buckets_by_time is for host memory, not for cuda");
    return 0;
}

static uint64_t hash_of(float value)
{
    return fnv1a(FNV1A, &value, sizeof value);
}

int parallel_agree(struct ddp_group *g, const struct ddp_param *params, size_t n,
                   const struct ddp_parallel_options *o, struct ddp_err *err)
{
    const struct {
        const char *name;
        uint64_t value;
    } rows[] = {{"number of parameters", n},
                {"optimiser", fnv1a(FNV1A, o->optimiser, strlen(o->optimiser))},
                {"momentum", hash_of(o->momentum)},
                {"decay", hash_of(o->decay)},
                {"beta2", hash_of(o->beta2)},
                {"clip_norm", hash_of(o->clip_norm)},
                {"first_bytes", o->first_bytes},
                {"bytes", o->bytes},
                {"replicated", o->replicated},
                {"buckets_by_time", o->buckets_by_time},
                {"ema", hash_of(o->ema)},
                {"cuda (memory of GPUs, or of hosts)", o->cuda},
                {"checkpoint (one, or none)", o->checkpoint != NULL}};
    uint64_t mine[ARRAY_LEN(rows)];
    int other;
    size_t i;
    for (i = 0; i < ARRAY_LEN(rows); i++)
        mine[i] = rows[i].value;
    TRY(replica_compare(g, mine, ARRAY_LEN(mine), &other, &i, err));
    if (other > 0)
        return err_set(err, "rank %d has another %s than rank 0", other, rows[i].name);
    OWNED uint64_t *hashes = xcalloc(n, sizeof *hashes);
    for (i = 0; i < n; i++) {
        const char *name = params[i].name ? params[i].name : "";
        hashes[i] = fnv1a(fnv1a(FNV1A, name, strlen(name)), &params[i].count,
                          sizeof params[i].count) +
                    params[i].no_decay;
    }
    TRY(replica_compare(g, hashes, n, &other, &i, err));
    return other == 0
               ? 0
               : err_set(err,
                         "parameter %zu of rank %d differs from rank 0's in name, count "
                         "or no_decay; here it is '%s', %zu, %s",
                         i, other, params[i].name ? params[i].name : "", params[i].count,
                         params[i].no_decay ? "true" : "false");
}

int parallel_check(const struct ddp_param *params, size_t n,
                   const struct ddp_parallel_options *o, struct ddp_err *err)
{
    return check_params(params, n, err) < 0 ? -1 : check_options(o, err);
}

int parallel_refuse(struct ddp_group *g, int rc, struct ddp_err *err)
{
    int culprit;
    rc = replica_agree(g, rc, &culprit, err);
    return rc < 0 && culprit > 0 ? err_prefix(err, "rank %d", culprit) : rc;
}
