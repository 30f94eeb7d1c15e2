/* worker/cuda/autotune_ranks.c - see engine_impl.h: the same algorithms on all ranks
 *
 * Rank 0 measures, for every number of samples that any rank will have, while the
 * others wait. A choice is a place in a library's list, which is the same for devices of
 * one name and the same versions of the libraries: ranks with others use the default.
 *
 * A run's choices, the default for want of time included, are part of its checkpoints:
 * a resumed run computes the same bits. A file, for which rank 0 is responsible, saves
 * new runs the time of measuring again.
 */
#include "worker/cuda/engine_impl.h"

#include "common/mem.h"
#include "common/text_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const what = "choosing algorithms";

/* The time for measuring: at most half of the group's timeout, for which the other ranks
 * wait. */
static int64_t most_ns(const struct engine_job *job)
{
    double seconds = job->tune, patience = (double)job->timeout_ms / 2000;
    return (int64_t)(1e9 * (seconds < patience ? seconds : patience));
}

/* ---- choices as text: the devices and libraries that they are for, then a choice per
 * line ---- */

/* The first line. */
static int describe_device(char *text, size_t size, struct ddp_err *err)
{
    struct cudaDeviceProp prop;
    int device = 0;
    TRY(check_cuda(cudaGetDevice(&device), what, err));
    TRY(check_cuda(cudaGetDeviceProperties(&prop, device), what, err));
    snprintf(text, size, "cuDNN %zu, cuBLASLt %zu, %.80s", cudnnGetVersion(),
             cublasLtGetVersion(), prop.name);
    return 0;
}

/* The caller frees. */
static char *write_choices(const char *device, const struct strv *choices)
{
    char *text;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        abort(); /* as mem.h does without memory */
    fprintf(f, "%s\n", device);
    for (size_t i = 0; i < choices->n; i++)
        fprintf(f, "%s\n", choices->v[i]);
    fclose(f);
    return text;
}

/* Adds the choices for products that have none yet. False: they are not for this device.
 * Changes `text`. */
static bool add_choices(const char *device, char *text, struct strv *choices)
{
    char *line = strsep(&text, "\n");
    if (strcmp(line, device) != 0)
        return false;
    while ((line = strsep(&text, "\n"))) {
        char *place = strchr(line, '=');
        if (!place)
            continue;
        *place = '\0';
        if (!strv_env_get(choices, line))
            strv_env_push(choices, line, place + 1);
    }
    return true;
}

/* ---- the file, which is rank 0's ---- */

/* ~/.cache/ddprun/algorithms-cuDNN-91400-..., the caller frees; `create`: its folders,
 * too. */
static char *cache_path(const char *device, bool create)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *folder =
        cache && *cache ? xstrdup(cache) : xasprintf("%s/.cache", home ? home : "");
    char *ours = xasprintf("%s/ddprun", folder);
    char *path = xasprintf("%s/algorithms-%s", ours, device);
    for (char *c = path + strlen(ours) + 1; *c; c++)
        if (strchr(" ,/", *c))
            *c = '-';
    if (create) { /* a failure shows when the file is written */
        mkdir(folder, 0777);
        mkdir(ours, 0777);
    }
    free(folder);
    free(ours);
    return path;
}

static void load(const struct tuner *t, struct strv *choices)
{
    struct ddp_err ignored;
    char *path = cache_path(t->device, false);
    char *text = text_file_read("cache", path, &ignored);
    if (text)
        add_choices(t->device, text, choices);
    free(text);
    free(path);
}

/* What this run has measured, and what is in the file by then: another run may have
 * written it since load(). */
static char *merge(const struct tuner *t)
{
    struct strv all = {0};
    for (size_t i = 0; i < t->choices.n; i++) {
        const char *choice = t->choices.v[i];
        if (choice[strlen(choice) - 1] != '=') /* without a place */
            strv_push(&all, choice);
    }
    load(t, &all);
    char *text = write_choices(t->device, &all);
    strv_finish(&all);
    return text;
}

static void save(struct tuner *t)
{
    char *text = merge(t);
    char *path = cache_path(t->device, true);
    char *part = xasprintf("%s.%d", path, getpid());
    FILE *f = fopen(part, "we");
    bool good = f && fputs(text, f) >= 0;
    if ((f && fclose(f) != 0) || !good || rename(part, path) < 0) {
        snprintf(t->unkept, sizeof t->unkept, "'%s': %s", path, strerror(errno));
        unlink(part);
    }
    free(text);
    free(part);
    free(path);
}

/* ---- the tuner ---- */

static int make_tuner(struct engine *e, struct ddp_err *err)
{
    if (e->tuner)
        return 0;
    e->tuner = xcalloc(1, sizeof *e->tuner);
    e->tuner->most_ns = most_ns(&e->job);
    return describe_device(e->tuner->device, sizeof e->tuner->device, err);
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
static int share(struct engine *e, struct ddp_err *err)
{
    struct tuner *t = e->tuner;
    char *text = e->rank == 0 ? write_choices(t->device, &t->choices) : NULL;
    int64_t bytes = text ? (int64_t)strlen(text) + 1 : 0;
    int32_t others = 0;
    int rc = ddp_broadcast(e->job.group, &bytes, 1, DDP_I64, 0, err);
    if (rc == 0 && !text)
        text = xcalloc((size_t)bytes, 1);
    if (rc == 0)
        rc = ddp_broadcast(e->job.group, text, (size_t)bytes, DDP_U8, 0, err);
    if (rc == 0 && e->rank > 0)
        others = !add_choices(t->device, text, &t->choices);
    free(text);
    if (rc == 0)
        rc = ddp_all_reduce(e->job.group, &others, 1, DDP_I32, DDP_SUM, err);
    t->others = others;
    return rc;
}

static int take(struct engine *e, struct ddp_err *err)
{
    for (int i = 0; i < e->nstages; i++) {
        struct stage *s = &e->stages[i];
        TRY(stage_enter(s, err));
        TRY(layers_choose(s->sets[0].net, &e->tuner->choices, s->grads, err));
    }
    return stage_enter(first_of(e), err);
}

int autotune_on_all_ranks(struct engine *e, int n, int batches, struct ddp_err *err)
{
    if (e->job.tune <= 0)
        return 0;
    TRY(make_tuner(e, err));
    struct tuner *t = e->tuner;
    int before = t->products - t->in_vain;
    if (e->rank == 0)
        load(t, &t->earlier);
    uint8_t *sizes = xcalloc((size_t)e->max_micro + 1, 1);
    int rc = sizes_on_all_ranks(e, n, batches, sizes, err);
    if (rc == 0 && e->rank == 0)
        rc = measure(e, sizes, err);
    if (rc == 0 && e->rank == 0 && t->products - t->in_vain > before)
        save(t);
    free(sizes);
    return rc < 0 || share(e, err) < 0 ? -1 : take(e, err);
}

/* ---- checkpoints ---- */

void autotune_to_checkpoint(const struct engine *e, char *text, size_t size)
{
    *text = '\0';
    if (!e->tuner || e->tuner->choices.n == 0)
        return;
    char *all = write_choices(e->tuner->device, &e->tuner->choices);
    if (strlen(all) < size)
        strcpy(text, all);
    free(all);
}

int autotune_from_checkpoint(struct engine *e, const char *text, struct ddp_err *err)
{
    if (e->job.tune <= 0 || e->rank > 0)
        return 0;
    TRY(make_tuner(e, err));
    struct tuner *t = e->tuner;
    char *copy = xstrdup(text);
    if (!add_choices(t->device, copy, &t->earlier))
        strv_pushf(&t->warnings, "the checkpoint's choice is for %.*s: not taken",
                   (int)strcspn(text, "\n"), text);
    free(copy);
    return 0;
}

/* ---- messages ---- */

/* The result, then the warnings, up to a limit. */
bool autotune_line(const struct engine *e, size_t line, char *text, size_t size)
{
    enum { MOST = 8 };
    const struct tuner none = {0}, *t = e->tuner ? e->tuner : &none;
    if (e->job.tune <= 0 || line > t->warnings.n || line > MOST)
        return false;
    if (line == 0)
        autotune_describe(t, text, size);
    else if (line == MOST && t->warnings.n > MOST)
        snprintf(text, size, "and %zu more like these", t->warnings.n - MOST + 1);
    else
        snprintf(text, size, "%s", t->warnings.v[line - 1]);
    return true;
}
