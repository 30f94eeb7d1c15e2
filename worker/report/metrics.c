/* worker/report/metrics.c - see metrics.h */
#include "worker/report/metrics.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/output_path.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
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

static void end_line(struct metrics *m)
{
    fputs("}\n", m->out);
    if (!m->failed && ferror(m->out))
        m->failed = errno ? errno : EIO;
}

const char *metrics_failure(struct metrics *m)
{
    if (!m->failed || m->told)
        return NULL;
    m->told = true;
    return strerror(m->failed);
}

void metrics_test(struct metrics *m, const struct report *r)
{
    char accuracy[32] = "null";
    if (isfinite(r->test_accuracy))
        snprintf(accuracy, sizeof accuracy, "%.9g", r->test_accuracy);
    metrics_line(m, "test",
                 "\"step\":%" PRIu64 ",\"epoch\":%d,\"test_loss\":%.9g,"
                 "\"test_accuracy\":%s,\"seconds\":%.9g",
                 r->step, r->epoch, r->test_loss, accuracy, r->seconds);
}

void metrics_report(struct metrics *m, const struct report *r, bool epoch)
{
    const struct {
        const char *name;
        double value;
        bool of_epoch;
    } numbers[] = {{"loss", r->loss, false},
                   {"train_accuracy", r->train_accuracy, true},
                   {"test_loss", r->test_loss, true},
                   {"test_accuracy", r->test_accuracy, true},
                   {"lr", r->lr, false},
                   {"images_per_s", r->images_per_s, false},
                   {"peak_percent", r->peak_percent, true},
                   {"seconds", r->seconds, false}};
    if (!m->out)
        return;
    fprintf(m->out, "{\"kind\":\"%s\",\"step\":%" PRIu64 ",\"epoch\":%d",
            epoch ? "epoch" : "step", r->step, r->epoch);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        if (numbers[i].of_epoch && !epoch)
            continue;
        fprintf(m->out, ",\"%s\":", numbers[i].name);
        if (isfinite(numbers[i].value))
            fprintf(m->out, "%.9g", numbers[i].value);
        else
            fputs("null", m->out);
    }
    end_line(m);
}

void metrics_line(struct metrics *m, const char *kind, const char *fields, ...)
{
    if (!m->out)
        return;
    fprintf(m->out, "{\"kind\":\"%s\",", kind);
    va_list ap;
    va_start(ap, fields);
    vfprintf(m->out, fields, ap);
    va_end(ap);
    end_line(m);
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
