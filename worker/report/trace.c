/* worker/report/trace.c - see trace.h */
#include "worker/report/trace.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/output_path.h"
#include "common/thread.h"
#include "common/utf8.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

struct span {
    int64_t begin_ns, end_ns;
    size_t bytes;
    enum trace_row row;
    char what[TRACE_NAME];
};

struct trace {
    int rank;
    int64_t zero_ns;
    pthread_mutex_t lock;
    struct span *spans; /* owned, [TRACE_MOST]: pages are taken as they fill */
    size_t n, lost;
};

static const char *const row_names[] = {
    [TRACE_STEP] = "steps",           [TRACE_DATA] = "data",
    [TRACE_COMPUTE] = "compute",      [TRACE_SECOND_STAGE] = "compute, second stage",
    [TRACE_TALK] = "communication",   [TRACE_COLLECT] = "data, on the host",
    [TRACE_COPY] = "data, to the GPU"};

struct trace *trace_create(int rank)
{
    struct trace *t = xcalloc(1, sizeof *t);
    *t = (struct trace){.rank = rank, .lock = PTHREAD_MUTEX_INITIALIZER};
    t->spans = xcalloc(TRACE_MOST, sizeof *t->spans);
    trace_zero(t);
    return t;
}

void trace_destroy(struct trace *t)
{
    if (!t)
        return;
    pthread_mutex_destroy(&t->lock);
    free(t->spans);
    free(t);
}

void trace_zero(struct trace *t)
{
    t->zero_ns = now_ns();
}

void trace_span(struct trace *t, enum trace_row row, const char *what, size_t bytes,
                int64_t begin_ns, int64_t end_ns)
{
    if (!t)
        return;
    LOCKED(&t->lock);
    if (t->n < TRACE_MOST) {
        struct span *s = &t->spans[t->n++];
        *s = (struct span){begin_ns - t->zero_ns, end_ns - t->zero_ns, bytes, row, ""};
        snprintf(s->what, sizeof s->what, "%s", what);
    } else {
        t->lost++;
    }
}

static void put_names(const struct trace *t, FILE *f)
{
    fprintf(f,
            "%s{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":"
            "\"rank %d\"}}",
            t->rank > 0 ? ",\n" : "", t->rank, t->rank);
    bool used[ARRAY_LEN(row_names)] = {false};
    for (size_t i = 0; i < t->n; i++)
        used[t->spans[i].row] = true;
    for (size_t row = 0; row < ARRAY_LEN(row_names); row++)
        if (used[row])
            fprintf(f,
                    ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,"
                    "\"tid\":%zu,\"args\":{\"name\":\"%s\"}}",
                    t->rank, row, row_names[row]);
    if (t->lost)
        fprintf(f,
                ",\n{\"name\":\"%zu later spans were not kept\",\"ph\":\"i\",\"s\":\"p\","
                "\"pid\":%d,\"tid\":0,\"ts\":%.3f}",
                t->lost, t->rank, (double)t->spans[t->n - 1].end_ns / 1e3);
}

/* Bytes of the whole characters of a name, which may be cut within the last one. */
static int whole_length(const char *name)
{
    size_t n = 0;
    for (size_t more = 1; more > 0 && name[n]; n += more)
        more = utf8_length(name + n);
    return (int)n;
}

char *trace_text(struct trace *t, size_t *len)
{
    char *text = NULL;
    FILE *f = xmemstream(&text, len);
    put_names(t, f);
    for (size_t i = 0; i < t->n; i++) {
        const struct span *s = &t->spans[i];
        fprintf(f,
                ",\n{\"name\":\"%.*s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,"
                "\"dur\":%.3f",
                whole_length(s->what), s->what, t->rank, (int)s->row,
                (double)s->begin_ns / 1e3, (double)(s->end_ns - s->begin_ns) / 1e3);
        if (s->bytes)
            fprintf(f, ",\"args\":{\"bytes\":%zu}", s->bytes);
        fputc('}', f);
    }
    xmemclose(f);
    return text;
}

int trace_write(const char *path, const char *texts, size_t len, struct ddp_err *err)
{
    const char *why;
    FILE *f = output_path_open(path, false, &why);
    if (!f)
        return err_set(err, "cannot write the trace '%s': %s", path, why);
    fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", f);
    fwrite(texts, 1, len, f);
    fputs("\n]}\n", f);
    bool failed = fflush(f) != 0 || ferror(f);
    if (fclose(f) != 0 || failed) /* a quota may be noticed as late as this */
        return err_errno(err, "cannot write the trace '%s'", path);
    return 0;
}
