/* worker/pipeline_schedule.c - see pipeline.h */
#include "worker/pipeline.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/kernels/rng.h"

int pipeline_micro_batches(int n, int wanted)
{
    return n < 1 ? 1 : n < wanted ? n : wanted;
}

struct micro_batch pipeline_micro_batch(int batch, int n, int parts, int m)
{
    int from = (int)((long)n * m / parts), to = (int)((long)n * (m + 1) / parts);
    return (struct micro_batch){from, to - from, batch * DROPOUT_MICRO + m};
}

int pipeline_split(const struct model *m, int stages, int *first, struct ddp_err *err)
{
    if (m->nlayers < stages)
        return err_set(err, "--stages %d: model '%s' has %d layer", stages, m->type->name,
                       m->nlayers);
    model_split(m, stages, first);
    return 0;
}

char *pipeline_describe(const struct model *m, int stages)
{
    int first[PIPELINE_STAGES + 1];
    char *text = NULL;
    const struct layer_spec *l = m->type->layers;
    model_split(m, stages, first);
    for (int s = 0; s < stages; s++)
        xappendf(&text, "%s%s to %s", s ? " | " : "", l[first[s]].name,
                 l[first[s + 1] - 1].name);
    return text;
}
