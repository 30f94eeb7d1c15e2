/* worker/cuda/nan_trace.c - see engine_impl.h: finds where a number that is not finite
 * began
 *
 * A step with a bad loss has changed no weight, and its samples are still in its slot:
 * it is run forward again, micro-batch by micro-batch, and the input, and each layer's
 * parameters and output, are checked.
 */
#include "worker/cuda/engine_impl.h"

#include "common/mem.h"
#include "common/scoped.h"

#include <math.h>

static const char *const what = "looking for a bad number";

/* Waits for the stage's main stream; notices if a rank dies meanwhile. */
static int see(struct stage *s, struct ddp_err *err)
{
    const struct engine *e = s->e;
    TRY(check_launches(what, err));
    TRY(check_cuda(cudaEventRecord(s->left, s->main), what, err));
    return comm_await(e->comm, s->left, e->job.timeout_ms, what, err);
}

/* Gets the stage's part of model_tell_place()'s places. */
static int look(struct stage *s, int k, float *found, struct ddp_err *err)
{
    int from = s->from == 0 ? 0 : 1 + 3 * s->from, n = 1 + 3 * s->to - from;
    TRY(stage_enter(s, err));
    const float *at = layers_find_bad(s->sets[0].net, k, err);
    if (!at || see(s, err) < 0)
        return -1;
    return check_cuda(cudaMemcpy(found + from, at + from, (size_t)n * sizeof *found,
                                 cudaMemcpyDeviceToHost),
                      what, err);
}

/* Checks k samples from `from` on, of micro-batch `batch`. */
static int look_at(struct engine *e, int from, int k, int batch,
                   struct engine_result *result, struct ddp_err *err)
{
    int places = 1 + 3 * model_layers(e->job.model);
    OWNED float *found = xcalloc((size_t)places, sizeof *found);
    TRY(stages_forward(e, from, k, true, batch, err));
    for (int i = 0; i < e->nstages; i++)
        TRY(look(&e->stages[i], k, found, err));
    for (int i = 0; k > 0 && !isfinite(result->loss) && i < places; i++)
        if (found[i] > 0 && !*result->where)
            result->depth =
                model_tell_place(e->job.model, i, result->where, sizeof result->where);
    return 0;
}

static int bring_back(struct engine *e, const struct slot *slot, struct ddp_err *err)
{
    struct stage *s = first_of(e);
    size_t bytes = sizeof *slot->in + (size_t)slot->of.mine * sizeof(uint32_t);
    TRY(see(s, err));
    TRY(check_cuda(
        cudaMemcpyAsync(s->in, slot->in, bytes, cudaMemcpyHostToDevice, s->main), what,
        err));
    return stages_order(e, err);
}

int engine_find_bad(struct engine *e, const struct slot *slot,
                    struct engine_result *result, struct ddp_err *err)
{
    const struct engine_job *job = &e->job;
    int n = slot->of.mine, batches = engine_batches(job, n, slot->of.all);
    TRY(bring_back(e, slot, err));
    for (int i = 0; i < batches; i++) {
        int k = engine_batch(job, n, i), parts = pipeline_micro_batches(k, e->micro);
        for (int m = 0; m < parts; m++) {
            const struct micro_batch b = pipeline_micro_batch(i, k, parts, m);
            TRY(look_at(e, i * job->how.batch_size + b.from, b.n, b.number, result, err));
        }
    }
    return stage_enter(first_of(e), err);
}
