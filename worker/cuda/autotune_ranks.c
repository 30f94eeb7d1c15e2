/* worker/cuda/autotune_ranks.c - see engine_impl.h: the same algorithms on all ranks
 *
 * Rank 0 measures, for every number of samples that any rank will have, while the
 * others wait. Then all ranks build its choices; where one rank cannot, all use the
 * default algorithm. A choice never changes once made, since graphs have been captured
 * with it.
 */
#include "worker/cuda/engine_impl.h"

#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The time for measuring: at most half of the group's timeout, for which the other ranks
 * wait. */
static int64_t most_ns(const struct engine_job *job)
{
    double seconds = job->tune, patience = (double)job->timeout_ms / 2000;
    return (int64_t)(1e9 * (seconds < patience ? seconds : patience));
}

static struct tuner *tuner_of(struct engine *e)
{
    if (!e->tuner && e->job.tune > 0) {
        e->tuner = xcalloc(1, sizeof *e->tuner);
        e->tuner->most_ns = most_ns(&e->job);
    }
    return e->tuner;
}

void autotune_ranks_free(struct engine *e)
{
    if (e->tuner)
        autotune_free(e->tuner);
    free(e->tuner);
}

/* ---- all ranks ---- */

/* The batch sizes, in samples, that occur on any rank. */
static int sizes_on_all_ranks(struct engine *e, int n, int batches, uint8_t *sizes,
                              struct ddp_err *err)
{
    for (int i = 0; i < batches; i++)
        stages_sizes(e, engine_batch(&e->job, n, i), sizes);
    return ddp_all_reduce(e->job.group, sizes, (size_t)e->max_micro + 1, DDP_U8, DDP_MAX,
                          err);
}

static int measure(struct engine *e, const uint8_t *sizes, struct ddp_err *err)
{
    for (int n = e->max_micro; n > 0; n--) {
        for (int i = 0; i < e->nstages && sizes[n]; i++) {
            struct stage *s = &e->stages[i];
            TRY(stage_enter(s, err));
            TRY(autotune_measure(e->tuner, s->sets[0].net, n, s->grads, err));
        }
    }
    return 0;
}

/* Broadcasts rank 0's choices. */
static int hear(struct engine *e, struct ddp_err *err)
{
    char header[AUTOTUNE_HEADER];
    char *text = e->rank == 0 ? autotune_write(e->tuner, "") : NULL;
    int64_t bytes = text ? (int64_t)strlen(text) + 1 : 0;
    int rc = ddp_broadcast(e->job.group, &bytes, 1, DDP_I64, 0, err);
    if (rc == 0 && !text)
        text = xcalloc((size_t)bytes, 1);
    if (rc == 0)
        rc = ddp_broadcast(e->job.group, text, (size_t)bytes, DDP_U8, 0, err);
    if (rc == 0 && e->rank > 0 && !autotune_read(e->tuner, text, header))
        rc = err_set(err, "rank 0 sent a malformed choice of algorithms");
    free(text);
    return rc;
}

/* Builds the choices for all sizes (plans for sizes that occur only on other ranks cost
 * little). A choice that some rank cannot build is reset to the default on all. */
static int settle(struct engine *e, const uint8_t *sizes, struct ddp_err *err)
{
    struct tuner *t = e->tuner;
    uint8_t *fails = xcalloc(t->choices.n + 1, 1);
    int rc = 0;
    for (int n = e->max_micro; n > 0; n--) {
        for (int i = 0; i < e->nstages && sizes[n] && rc == 0; i++) {
            rc = stage_enter(&e->stages[i], err);
            if (rc == 0)
                rc = autotune_try(t, e->stages[i].sets[0].net, n, fails, err);
        }
    }
    if (rc == 0)
        rc = ddp_all_reduce(e->job.group, fails, t->choices.n + 1, DDP_U8, DDP_MAX, err);
    for (size_t i = 0; i < t->choices.n && rc == 0; i++) {
        if (fails[i])
            autotune_drop(t, i);
    }
    for (int i = 0; i < e->nstages && rc == 0; i++)
        autotune_take(t, e->stages[i].sets[0].net);
    free(fails);
    return rc;
}

int autotune_on_all_ranks(struct engine *e, int n, int batches, struct ddp_err *err)
{
    if (!tuner_of(e))
        return 0;
    uint8_t *sizes = xcalloc((size_t)e->max_micro + 1, 1);
    int rc = sizes_on_all_ranks(e, n, batches, sizes, err);
    if (rc == 0 && e->rank == 0)
        rc = measure(e, sizes, err);
    if (rc == 0)
        rc = hear(e, err);
    if (rc == 0)
        rc = settle(e, sizes, err);
    free(sizes);
    return rc < 0 ? -1 : stage_enter(first_of(e), err);
}

/* ---- checkpoints ---- */

void autotune_to_checkpoint(const struct engine *e, char *text, size_t size)
{
    char header[AUTOTUNE_HEADER];
    struct ddp_err ignored;
    *text = '\0';
    if (!e->tuner || e->tuner->choices.n == 0 || autotune_header(header, &ignored) < 0)
        return;
    char *all = autotune_write(e->tuner, header);
    if (strlen(all) < size)
        strcpy(text, all);
    free(all);
}

int autotune_from_checkpoint(struct engine *e, const char *text, struct ddp_err *err)
{
    char header[AUTOTUNE_HEADER], here[AUTOTUNE_HEADER];
    struct tuner *t = tuner_of(e);
    if (!t)
        return 0;
    TRY(autotune_header(here, err));
    bool good = autotune_read(t, text, header);
    if (good && strcmp(header, here) == 0) {
        t->taken_over = true;
        return 0;
    }
    strv_finish(&t->choices);
    if (good)
        strv_pushf(&t->warnings, "the checkpoint's choice was made for %s: not taken",
                   header);
    else
        strv_push(&t->warnings, "the checkpoint's choice cannot be read: not taken");
    return 0;
}

/* ---- messages ---- */

/* The result, then the warnings, up to a limit. */
bool autotune_line(const struct engine *e, size_t line, char *text, size_t size)
{
    enum { MOST = 8 };
    const struct tuner *t = e->tuner;
    if (!t || line > t->warnings.n || line > MOST)
        return false;
    if (line == 0)
        autotune_describe(t, text, size);
    else if (line == MOST && t->warnings.n > MOST)
        snprintf(text, size, "and %zu more like these", t->warnings.n - MOST + 1);
    else
        snprintf(text, size, "%s", t->warnings.v[line - 1]);
    return true;
}
