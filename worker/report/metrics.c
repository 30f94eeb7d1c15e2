/* worker/report/metrics.c - see metrics.h */
#include "worker/report/metrics.h"

#include "common/err.h"
#include "common/output_path.h"

#include <errno.h>
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

static void put_number(FILE *out, const char *name, double value)
{
    if (isfinite(value))
        fprintf(out, ",\"%s\":%.9g", name, value);
    else
        fprintf(out, ",\"%s\":null", name);
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

void metrics_step(struct metrics *m, const struct step_report *r)
{
    if (!m->out)
        return;
    fprintf(m->out, "{\"kind\":\"step\",\"step\":%llu,\"epoch\":%d",
            (unsigned long long)r->step, r->epoch);
    put_number(m->out, "loss", r->loss);
    put_number(m->out, "lr", r->lr);
    put_number(m->out, "images_per_s", r->images_per_s);
    put_number(m->out, "seconds", r->seconds);
    end_line(m);
}

void metrics_epoch(struct metrics *m, const struct epoch_report *r)
{
    if (!m->out)
        return;
    fprintf(m->out, "{\"kind\":\"epoch\",\"step\":%llu,\"epoch\":%d",
            (unsigned long long)r->step, r->epoch);
    put_number(m->out, "loss", r->loss);
    put_number(m->out, "train_accuracy", r->train_accuracy);
    put_number(m->out, "test_loss", r->test_loss);
    put_number(m->out, "test_accuracy", r->test_accuracy);
    put_number(m->out, "lr", r->lr);
    put_number(m->out, "images_per_s", r->images_per_s);
    put_number(m->out, "peak_percent", r->peak_percent);
    put_number(m->out, "seconds", r->seconds);
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
