/* worker/report/trace.h - a timeline of steps: when a rank computed, communicated and
 * read data
 *
 * Spans are recorded in memory (the first TRACE_MOST) and written at the end, for all
 * ranks in one file, in the format that ui.perfetto.dev and chrome://tracing open:
 *     https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
 * A rank is shown as a process, a row as a thread of it. Times are microseconds after
 * trace_zero(), which all ranks call at about the same moment.
 *
 * Owner: the run. Any thread may add spans.
 */
#ifndef WORKER_REPORT_TRACE_H
#define WORKER_REPORT_TRACE_H

#include "include/ddprun/err.h"

#include <stddef.h>
#include <stdint.h>

enum { TRACE_MOST = 200000, TRACE_NAME = 64 };

/* The last two are for data that are not stored in a GPU's memory. */
enum trace_row {
    TRACE_STEP,
    TRACE_DATA,
    TRACE_COMPUTE,
    TRACE_SECOND_STAGE,
    TRACE_TALK,
    TRACE_COLLECT,
    TRACE_COPY
};

struct trace;

struct trace *trace_create(int rank);
void trace_destroy(struct trace *t); /* NULL is allowed */
void trace_zero(struct trace *t);

/* Records a span. `what` is copied (TRACE_NAME - 1 bytes); `bytes` 0: not shown. Times
 * are now_ns(). NULL `t`: does nothing. */
void trace_span(struct trace *t, enum trace_row row, const char *what, size_t bytes,
                int64_t begin_ns, int64_t end_ns);

/* This rank's events as JSON, without the enclosing brackets, to be put behind those of
 * the ranks before it; the caller frees. */
char *trace_text(struct trace *t, size_t *len);

/* Writes the ranks' texts, concatenated in `texts`, to a file. */
int trace_write(const char *path, const char *texts, size_t len, struct ddp_err *err);

#endif
