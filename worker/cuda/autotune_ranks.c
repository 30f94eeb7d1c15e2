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
#include "common/fnv.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "common/text_file.h"
#include "worker/ddp/replica.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the file, which is rank 0's ---- */

/* The device and libraries that choices are for, as the end of a file's name. */
static int name_device(char *name, size_t size, struct ddp_err *err)
{
    struct cudaDeviceProp prop;
    int device = 0;
    cuda_doing("choosing algorithms");
    CUDA(cudaGetDevice(&device));
    CUDA(cudaGetDeviceProperties(&prop, device));
    TRY(cuda_outcome(err));
    snprintf(name, size, "cuDNN-%zu-cuBLASLt-%zu-%.80s", cudnnGetVersion(),
             cublasLtGetVersion(), prop.name);
    for (char *c = name; *c; c++)
        if (*c == ' ' || *c == '/')
            *c = '-';
    return 0;
}

/* ~/.cache/ddprun/algorithms-DEVICE, the caller frees; creates its folders, whose
 * failure shows when the file is opened. */
static char *cache_path(const char *device)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    OWNED char *folder =
        cache && *cache ? xstrdup(cache) : xasprintf("%s/.cache", home ? home : "");
    OWNED char *ours = xasprintf("%s/ddprun", folder);
    char *path = xasprintf("%s/algorithms-%s", ours, device);
    mkdir(folder, 0777);
    mkdir(ours, 0777);
    return path;
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

/* Appends the choices from byte `from` on, and takes what is then in the file, as later
 * runs will: another run may have measured the same products at the same time. */
static int keep(const char *path, struct tuner *t, size_t from, struct ddp_err *err)
{
    OWNED char *kept = append(path, t->choices + from, err) == 0
                           ? text_file_read("cache file", path, err)
                           : NULL;
    if (!kept)
        return -1;
    char *all = xasprintf("%s\n%s", kept, t->choices);
    free(t->choices);
    t->choices = all;
    return 0;
}

/* ---- measuring ---- */

/* The time for measuring: at most half of the group's timeout, for which the other ranks
 * wait. */
static int64_t time_allowed(const struct engine_job *job)
{
    double seconds = job->how.tune, patience = (double)job->timeout_ms / 2000;
    return (int64_t)(1e9 * (seconds < patience ? seconds : patience));
}

/* The report, as far as rank 0 has anything to add to it. */
static void report(struct engine *e, const char *path, const char *unkept)
{
    free(e->tuned);
    e->tuned = autotune_describe(&e->tuner);
    if (e->tuner.late > 0)
        xappendf(&e->tuned,
                 "; %d not measured for lack of time: remove %s, and give --tune more",
                 e->tuner.late, path);
    if (unkept)
        xappendf(&e->tuned, "; not kept for later runs: %s", unkept);
}

static void measure_all(struct engine *e, const uint8_t *sizes)
{
    for (int n = e->max_micro; n > 0; n--) {
        for (int i = 0; i < e->nstages && sizes[n]; i++) {
            struct stage *s = &e->stages[i];
            stage_enter(s);
            autotune_measure(&e->tuner, s->sets[0].net, n, s->grads);
        }
    }
}

/* On rank 0: makes a choice for all products of these sizes. */
static void measure(struct engine *e, const char *device, const uint8_t *sizes)
{
    struct tuner *t = &e->tuner;
    struct ddp_err why;
    OWNED char *path = cache_path(device);
    const char *unkept = NULL;
    if (!t->choices) {
        OWNED char *known = text_file_read("cache file", path, &why);
        t->choices = xasprintf("%s\n", known ? known : "");
    }
    if (!e->tuned)
        t->left_ns = time_allowed(&e->job);
    size_t before = strlen(t->choices);
    measure_all(e, sizes);
    bool more = strlen(t->choices) > before;
    if (!cuda_failed() && more && keep(path, t, before, &why) < 0)
        unkept = why.text;
    if (more || !e->tuned)
        report(e, path, unkept);
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

/* Broadcasts rank 0's choices. */
static int share(struct engine *e, struct ddp_err *err)
{
    char **choices = &e->tuner.choices;
    int64_t bytes = e->rank == 0 ? (int64_t)strlen(*choices) + 1 : 0;
    TRY(ddp_broadcast(e->job.group, &bytes, 1, DDP_I64, 0, err));
    if (e->rank > 0)
        *choices = xrealloc(*choices, (size_t)bytes, 1);
    return ddp_broadcast(e->job.group, *choices, (size_t)bytes, DDP_U8, 0, err);
}

static void take(struct engine *e)
{
    for (EACH_STAGE(s, e)) {
        stage_enter(s);
        layers_choose(s->sets[0].net, &e->tuner.choices, s->grads);
    }
    stage_enter(first_of(e));
}

int autotune_on_all_ranks(struct engine *e, int n, int batches, struct ddp_err *err)
{
    char device[160];
    int other;
    size_t i;
    if (e->job.how.tune <= 0)
        return 0;
    TRY(name_device(device, sizeof device, err));
    const uint64_t hash = fnv1a(FNV1A, device, strlen(device));
    TRY(replica_compare(e->job.group, &hash, 1, &other, &i, err));
    if (other > 0) {
        free(e->tuned);
        e->tuned = xstrdup("nothing: the ranks have different GPUs or libraries");
        return 0;
    }
    OWNED uint8_t *sizes = xcalloc((size_t)e->max_micro + 1, 1);
    TRY(sizes_on_all_ranks(e, n, batches, sizes, err));
    if (e->rank == 0)
        measure(e, device, sizes);
    TRY(replica_agree(e->job.group, cuda_outcome(err), NULL, err));
    TRY(share(e, err));
    take(e);
    return cuda_outcome(err);
}
