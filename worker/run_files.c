/* worker/run_files.c - the files that a run makes: log, plot, logits, trace (run.h) */
#include "worker/run.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/output_path.h"
#include "common/scoped.h"
#include "worker/report/plot.h"
#include "worker/safetensors.h"

#include <libgen.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Files that are not there yet have the same name. */
static bool is_same_file(const char *a, const char *b)
{
    struct stat x, y;
    if (stat(a, &x) < 0 || stat(b, &y) < 0)
        return strcmp(a, b) == 0;
    return S_ISREG(x.st_mode) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

struct run_file {
    const char *option, *path; /* path NULL: there is none */
    const char *report;        /* NULL: it is none; else what to call it */
    enum output_path_use use;
};

/* The report is to replace none of these. */
static int check_report(const struct run_file *report, const struct run_file *others,
                        size_t n, struct ddp_err *err)
{
    const char *why = output_path_check(report->path, report->use);
    if (why)
        return err_set(err, "cannot write the %s '%s': %s", report->report, report->path,
                       why);
    for (const struct run_file *f = others; f < others + n; f++) {
        if (f->path && is_same_file(report->path, f->path))
            return err_set(err, "--%s and --%s are one file, '%s': give --%s another",
                           report->option, f->option, report->path, report->option);
    }
    return 0;
}

/* NULL: it is the name of something built in, as "digits". */
static const char *if_exists(const char *path)
{
    return path && access(path, F_OK) == 0 ? path : NULL;
}

int run_check_files(const struct train_config *c, struct ddp_err *err)
{
    const char *plot = config_given(c, "plot") ? c->plot : NULL;
    const struct run_file files[] = {
        {"log", c->log, "log", OUTPUT_PATH_WRITTEN},
        {"plot", plot, "picture", OUTPUT_PATH_WRITTEN},
        {"trace", c->trace, "trace", OUTPUT_PATH_WRITTEN},
        {"logits", c->logits, "logits", OUTPUT_PATH_REPLACED},
        {.option = "checkpoint", c->checkpoint},
        {.option = "data", if_exists(c->data)},
        {.option = "model", if_exists(c->model->where)},
        {.option = "resume", c->resume},
        {.option = "init", c->init}};
    for (size_t i = 0; files[i].report; i++) {
        if (files[i].path)
            TRY(check_report(&files[i], &files[i + 1], ARRAY_LEN(files) - i - 1, err));
    }
    return 0;
}

static int write_logits(struct run *run, struct ddp_err *err)
{
    const struct samples *test = &run->data.test;
    int outputs = run->data.shape.outputs, batch = run->c->how.batch_size;
    OWNED float *logits = xcalloc(test->n * (size_t)outputs, sizeof *logits);
    SCOPED(batch_buf_finish) struct batch_buf buf;
    batch_buf_init(&buf, &run->data, batch);
    for (size_t i = 0; i < test->n; i += (size_t)batch) {
        size_t left = test->n - i;
        int n = left < (size_t)batch ? (int)left : batch;
        struct batch b =
            dataset_gather(&run->data, test, NULL, run->in_order + i, n, &buf);
        memcpy(logits + i * (size_t)outputs, model_forward(run->model, &b),
               (size_t)n * (size_t)outputs * sizeof *logits);
    }
    struct array array = {"logits", 2, {(int)test->n, outputs}, logits};
    SCOPED(strv_finish) struct strv metadata = {0};
    strv_pushf(&metadata, "model=%s", run->c->model->name);
    const char *why;
    OWNED char *path = output_path_follow(run->c->logits, &why);
    return path ? safetensors_write(path, &metadata, &array, 1, NULL, err)
                : err_set(err, "cannot write '%s': %s", run->c->logits, why);
}

static char *plot_title(const struct run *run)
{
    const struct train_config *c = run->c;
    OWNED char *copy = xstrdup(c->data);
    const char *data = basename(copy); /* the last component of a path */
    char *title = xasprintf("%s on %s, %d rank%s", c->model->name, data, run->size,
                            run->size == 1 ? "" : "s");
    if (run->last.epoch > 0 && isfinite(run->last.test_accuracy))
        xappendf(&title, ": %.2f %% after epoch %d", run->last.test_accuracy,
                 run->last.epoch);
    return title;
}

/* The plot's file. A default name does not replace a file of an earlier run: then
 * "ddp-train.2.svg" and so on. malloc'ed. */
static char *plot_file(const struct train_config *c)
{
    char *file = xstrdup(c->plot);
    const char *dot = strrchr(c->plot, '.');
    for (int i = 2; !config_given(c, "plot") && access(file, F_OK) == 0; i++) {
        free(file);
        file = xasprintf("%.*s.%d%s", (int)(dot - c->plot), c->plot, i, dot);
    }
    return file;
}

static int write_plot(struct run *run, char **path, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    OWNED char *title = plot_title(run), *file = plot_file(c);
    struct ddp_err why;
    if (plot_write(file, title, &run->history, &why) == 0)
        *path = realpath(file, NULL);
    else if (config_given(c, "plot"))
        return err_set(err, "%s", why.text);
    else
        progress_say(&run->progress, "no picture: %s", why.text);
    return 0;
}

static int write_own(struct run *run, struct ddp_err *err)
{
    const struct train_config *c = run->c;
    OWNED char *plot = NULL;
    int rc = 0;
    if (run->rank != 0)
        return 0;
    if (c->plot && (run->history.nsteps || run->history.nepochs))
        rc = write_plot(run, &plot, err);
    if (c->logits && write_logits(run, rc < 0 ? NULL : err) < 0)
        rc = -1;
    run_tell_result(run, plot);
    if (rc == 0)
        rc = metrics_close(&run->metrics, err);
    return rc == 0 ? progress_check(&run->progress, err) : rc;
}

/* Rank 0 writes the traces of all ranks. */
static int write_trace(struct run *run, struct ddp_err *err)
{
    size_t size = (size_t)run->size, len, all = 0;
    OWNED char *mine = trace_text(run->trace, &len), *texts = NULL;
    OWNED size_t *counts = xcalloc(size, sizeof *counts);
    OWNED int64_t *lens = xcalloc(size, sizeof *lens);
    const int64_t own = (int64_t)len;
    TRY(ddp_all_gather(run->group, &own, lens, 1, DDP_I64, err));
    for (int r = 0; r < run->size; r++)
        all += counts[r] = (size_t)lens[r];
    if (run->rank == 0)
        texts = xcalloc(all + 1, 1);
    TRY(ddp_gatherv(run->group, mine, len, texts, counts, DDP_U8, 0, err));
    return run->rank == 0 ? trace_write(run->c->trace, texts, all, err) : 0;
}

int run_write_files(struct run *run, struct ddp_err *err)
{
    int rc = run->trace ? write_trace(run, err) : 0;
    return write_own(run, rc < 0 ? NULL : err) < 0 ? -1 : rc;
}
