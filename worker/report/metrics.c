/* worker/report/metrics.c - see metrics.h */
#include "worker/report/metrics.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/output_path.h"

#include <errno.h>
#include <math.h>
#include <string.h>

int metrics_open(struct metrics *m, const char *path, bool append, struct ddp_err *err)
{
    *m = (struct metrics){.path = path};
    if (!path)
        return 0;
    const char *why;
    m->out = output_path_open(path, append, &why);
    if (!m->out)
        return err_set(err, "cannot write the log '%s': %s", path, why);
    setvbuf(m->out, NULL, _IOLBF, BUFSIZ);
    return 0;
}

const char *metrics_failure(struct metrics *m)
{
    if (!m->failed || m->told)
        return NULL;
    m->told = true;
    return strerror(m->failed);
}

json_t *metrics_number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

void metrics_report(struct metrics *m, enum metrics_kind kind, const struct report *r)
{
    static const char *const kinds[] = {
        [METRICS_STEP] = "step", [METRICS_EPOCH] = "epoch", [METRICS_TEST] = "test"};
    const struct {
        const char *name;
        double value;
        unsigned of;
    } numbers[] = {{"loss", r->loss, METRICS_STEP | METRICS_EPOCH},
                   {"train_accuracy", r->train_accuracy, METRICS_EPOCH},
                   {"test_loss", r->test_loss, METRICS_EPOCH | METRICS_TEST},
                   {"test_accuracy", r->test_accuracy, METRICS_EPOCH | METRICS_TEST},
                   {"lr", r->lr, METRICS_STEP | METRICS_EPOCH},
                   {"images_per_s", r->images_per_s, METRICS_STEP | METRICS_EPOCH},
                   {"peak_percent", r->peak_percent, METRICS_EPOCH},
                   {"seconds", r->seconds, METRICS_STEP | METRICS_EPOCH | METRICS_TEST}};
    if (!m->out)
        return;
    struct metrics_field fields[2 + ARRAY_LEN(numbers)] = {
        {"step", json_integer((json_int_t)r->step)}, {"epoch", json_integer(r->epoch)}};
    size_t n = 2;
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        if (numbers[i].of & kind)
            fields[n++] =
                (struct metrics_field){numbers[i].name, metrics_number(numbers[i].value)};
    metrics_line(m, kinds[kind], fields, n);
}

void metrics_line(struct metrics *m, const char *kind, const struct metrics_field *fields,
                  size_t n)
{
    json_t *line = json_pack("{s:s}", "kind", kind);
    for (size_t i = 0; i < n; i++)
        json_object_set_new(line, fields[i].name, fields[i].value);
    if (m->out) {
        json_dumpf(line, m->out, JSON_COMPACT | JSON_REAL_PRECISION(9));
        fputc('\n', m->out);
        if (!m->failed && ferror(m->out))
            m->failed = errno ? errno : EIO;
    }
    json_decref(line);
}

int metrics_close(struct metrics *m, struct ddp_err *err)
{
    if (!m->out)
        return 0;
    if (fclose(m->out) != 0 && !m->failed)
        m->failed = errno;
    m->out = NULL;
    return m->failed ? err_set(err, "the log '%s' is not complete: %s", m->path,
                               strerror(m->failed))
                     : 0;
}
