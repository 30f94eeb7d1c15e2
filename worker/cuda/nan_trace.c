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

/* Waits for the stage's main stream; notices if a rank dies meanwhile. */
static void see(struct stage *s)
{
    const struct engine *e = s->e;
    stage_doing(s, "looking for a bad number");
    CUDA(cudaEventRecord(s->left, s->main));
    comm_await(e->comm, s->left, e->job.timeout_ms);
}

/* Gets the stage's part of model_tell_place()'s places. */
static void look(struct stage *s, int k, float *found)
{
    int from = s->from == 0 ? 0 : 1 + 3 * s->from, n = 1 + 3 * s->to - from;
    stage_enter(s);
    const float *at = layers_find_bad(s->sets[0].net, k);
    see(s);
    CUDA(cudaMemcpy(found + from, at + from, (size_t)n * sizeof *found,
                    cudaMemcpyDeviceToHost));
}

/* Checks k samples from `from` on, of micro-batch `batch`. */
static void look_at(struct engine *e, int from, int k, int batch,
                    struct engine_result *result)
{
    int places = 1 + 3 * e->job.model->nlayers;
    OWNED float *found = xcalloc((size_t)places, sizeof *found);
    stages_forward(e, from, k, true, batch);
    for (EACH_STAGE(s, e))
        look(s, k, found);
    for (int i = 0; k > 0 && !isfinite(result->loss) && i < places; i++)
        if (found[i] > 0 && !*result->where)
            result->depth =
                model_tell_place(e->job.model, i, result->where, sizeof result->where);
}

static void bring_back(struct engine *e, const struct slot *slot)
{
    struct stage *s = first_of(e);
    size_t bytes = sizeof *slot->in + (size_t)slot->of.mine * sizeof(uint32_t);
    see(s);
    CUDA(cudaMemcpyAsync(s->in, slot->in, bytes, cudaMemcpyHostToDevice, s->main));
    stages_order(e);
}

void engine_find_bad(struct engine *e, const struct slot *slot,
                     struct engine_result *result)
{
    const struct engine_job *job = &e->job;
    int n = slot->of.mine, batches = engine_batches(job, n, slot->of.all);
    bring_back(e, slot);
    for (int i = 0; i < batches; i++) {
        int k = engine_batch(job, n, i), parts = pipeline_micro_batches(k, e->micro);
        for (int m = 0; m < parts; m++) {
            const struct micro_batch b = pipeline_micro_batch(i, k, parts, m);
            look_at(e, i * job->how.batch_size + b.from, b.n, b.number, result);
        }
    }
    stage_enter(first_of(e));
}
