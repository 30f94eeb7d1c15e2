/* worker/cuda/autotune_ranks.c - see engine_impl.h: the same algorithms on all ranks
 *
 * Rank 0 measures, for every number of samples that any rank will have, while the
 * others wait. A choice is a place in a library's list, which is the same for devices of
 * one name and the same versions of the libraries: ranks that differ in these use the
 * defaults.
 *
 * Rank 0 appends what it has chosen to a file for its device and libraries, and never
 * measures what is there: later runs, resumed ones included, compute the same bits. What
 * there was no time for is kept as the default.
 */
#include "worker/cuda/engine_impl.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/text_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const what = "choosing algorithms";

/* ---- the file, which is rank 0's ---- */

/* The device and libraries that choices are for, as the end of a file's name. */
struct device_name {
    char text[160];
};

static int name_device(struct device_name *name, struct ddp_err *err)
{
    struct cudaDeviceProp prop;
    int device = 0;
    *name = (struct device_name){""}; /* padding, too: names are compared as a whole */
    TRY(check_cuda(cudaGetDevice(&device), what, err));
    TRY(check_cuda(cudaGetDeviceProperties(&prop, device), what, err));
    snprintf(name->text, sizeof name->text, "cuDNN-%zu-cuBLASLt-%zu-%.80s",
             cudnnGetVersion(), cublasLtGetVersion(), prop.name);
    for (char *c = name->text; *c; c++)
        if (*c == ' ' || *c == '/')
            *c = '-';
    return 0;
}

/* ~/.cache/ddprun/algorithms-DEVICE, the caller frees; creates its folders, whose
 * failure shows when the file is opened. */
static char *cache_path(const struct device_name *name)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char *folder =
        cache && *cache ? xstrdup(cache) : xasprintf("%s/.cache", home ? home : "");
    char *ours = xasprintf("%s/ddprun", folder);
    char *path = xasprintf("%s/algorithms-%s", ours, name->text);
    mkdir(folder, 0777);
    mkdir(ours, 0777);
    free(folder);
    free(ours);
    return path;
}

/* Replaces the choices by those of a text, one in each line; the first for a product
 * counts. Changes `text`. */
static void read_choices(char *text, struct strv *choices)
{
    strv_finish(choices);
    for (char *line; (line = strsep(&text, "\n"));)
        if (strchr(line, '='))
            strv_push(choices, line);
}

/* The choices from number `from` on; the caller frees. */
static char *write_choices(const struct strv *choices, size_t from)
{
    char *text = xstrdup("");
    for (size_t i = from; i < choices->n; i++) {
        char *longer = xasprintf("%s%s\n", text, choices->v[i]);
        free(text);
        text = longer;
    }
    return text;
}

/* In one call, so that what runs write at the same time is not mixed. */
static int append(const char *path, const char *text, struct ddp_err *err)
{
    size_t n = strlen(text);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    ssize_t written = fd < 0 ? -1 : write(fd, text, n);
    if (fd < 0 || close(fd) < 0 || written < 0)
        return err_errno(err, "'%s'", path);
    return written == (ssize_t)n ? 0 : err_set(err, "'%s': no space is left", path);
}

/* Appends the choices from number `from` on, and takes what is then in the file, as later
 * runs will: another run may have measured the same products at the same time. */
static int keep(const char *path, struct strv *choices, size_t from, struct ddp_err *err)
{
    char *more = write_choices(choices, from), *own = write_choices(choices, 0);
    char *kept = append(path, more, err) == 0 ? text_file_read("cache", path, err) : NULL;
    if (kept) {
        char *all = xasprintf("%s\n%s", kept, own);
        read_choices(all, choices);
        free(all);
    }
    free(more);
    free(own);
    free(kept);
    return kept ? 0 : -1;
}

/* ---- measuring ---- */

/* The time for measuring: at most half of the group's timeout, for which the other ranks
 * wait. */
static int64_t time_allowed(const struct engine_job *job)
{
    double seconds = job->tune, patience = (double)job->timeout_ms / 2000;
    return (int64_t)(1e9 * (seconds < patience ? seconds : patience));
}

/* The report, as far as rank 0 has anything to add to it. */
static void report(struct engine *e, const char *path, const char *unkept)
{
    size_t size = sizeof e->tuned, n = autotune_describe(&e->tuner, e->tuned, size);
    if (e->tuner.late > 0 && n < size)
        n += (size_t)snprintf(e->tuned + n, size - n,
                              "; %d not measured for lack of time: remove %s, and give "
                              "--tune more",
                              e->tuner.late, path);
    if (unkept && n < size)
        snprintf(e->tuned + n, size - n, "; not kept for later runs: %s", unkept);
}

static int measure_all(struct engine *e, const uint8_t *sizes, struct ddp_err *err)
{
    for (int n = e->max_micro; n > 0; n--) {
        for (int i = 0; i < e->nstages && sizes[n]; i++) {
            struct stage *s = &e->stages[i];
            TRY(stage_enter(s, err));
            TRY(autotune_measure(&e->tuner, s->sets[0].net, n, s->grads, err));
        }
    }
    return 0;
}

/* On rank 0: makes a choice for all products of these sizes. */
static int measure(struct engine *e, const struct device_name *name, const uint8_t *sizes,
                   struct ddp_err *err)
{
    struct tuner *t = &e->tuner;
    struct ddp_err why;
    char *path = cache_path(name), *known = text_file_read("cache", path, &why);
    const char *unkept = NULL;
    if (known && t->choices.n == 0)
        read_choices(known, &t->choices);
    if (!*e->tuned)
        t->left_ns = time_allowed(&e->job);
    size_t before = t->choices.n;
    int rc = measure_all(e, sizes, err);
    bool more = t->choices.n > before;
    if (rc == 0 && more && keep(path, &t->choices, before, &why) < 0)
        unkept = why.text;
    if (more || !*e->tuned)
        report(e, path, unkept);
    free(path);
    free(known);
    return rc;
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

/* Do all ranks have the same kind of device and the same libraries? */
static int compare_devices(struct engine *e, struct device_name *name, uint8_t *differ,
                           struct ddp_err *err)
{
    struct device_name first;
    TRY(name_device(name, err));
    first = *name;
    TRY(ddp_broadcast(e->job.group, &first, sizeof first, DDP_U8, 0, err));
    *differ = memcmp(&first, name, sizeof first) != 0;
    return ddp_all_reduce(e->job.group, differ, 1, DDP_U8, DDP_MAX, err);
}

/* Broadcasts rank 0's choices. */
static int share(struct engine *e, struct ddp_err *err)
{
    struct strv *choices = &e->tuner.choices;
    char *text = e->rank == 0 ? write_choices(choices, 0) : NULL;
    int64_t bytes = text ? (int64_t)strlen(text) + 1 : 0;
    int rc = ddp_broadcast(e->job.group, &bytes, 1, DDP_I64, 0, err);
    if (rc == 0 && !text)
        text = xcalloc((size_t)bytes, 1);
    if (rc == 0)
        rc = ddp_broadcast(e->job.group, text, (size_t)bytes, DDP_U8, 0, err);
    if (rc == 0)
        read_choices(text, choices);
    free(text);
    return rc;
}

static int take(struct engine *e, struct ddp_err *err)
{
    for (int i = 0; i < e->nstages; i++) {
        struct stage *s = &e->stages[i];
        TRY(stage_enter(s, err));
        TRY(layers_choose(s->sets[0].net, &e->tuner.choices, s->grads, err));
    }
    return stage_enter(first_of(e), err);
}

int autotune_on_all_ranks(struct engine *e, int n, int batches, struct ddp_err *err)
{
    struct device_name name;
    uint8_t differ;
    if (e->job.tune <= 0)
        return 0;
    TRY(compare_devices(e, &name, &differ, err));
    if (differ) {
        snprintf(e->tuned, sizeof e->tuned,
                 "nothing: the ranks have different GPUs or libraries");
        return 0;
    }
    uint8_t *sizes = xcalloc((size_t)e->max_micro + 1, 1);
    int rc = sizes_on_all_ranks(e, n, batches, sizes, err);
    if (rc == 0 && e->rank == 0)
        rc = measure(e, &name, sizes, err);
    free(sizes);
    return rc < 0 || share(e, err) < 0 ? -1 : take(e, err);
}
