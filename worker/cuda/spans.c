/* worker/cuda/spans.c - see engine_impl.h: durations of a step's parts, for --trace
 *
 * When a step is captured, events are captured between its parts; each replay records
 * their times anew. Two graphs alternate, as the slots do, so that the host may read
 * one step's times while the next one runs. Times are relative to an anchor, an event
 * whose completion the host has observed. CUDA gives differences as float
 * milliseconds, accurate to 1 us for 16 s, so the anchor is renewed whenever nothing
 * is in flight.
 */
#include "worker/cuda/engine_impl.h"

#include "common/duration.h"
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>

struct span {
    enum trace_row row;
    char what[TRACE_NAME];
    size_t bytes;
    size_t from, to; /* events of one stage */
    int stage;
};

struct spans {
    cudaEvent_t *events; /* owned */
    size_t nevents;
    size_t last[PIPELINE_STAGES][2]; /* events: the last on main, and on sums */
    struct span *all;                /* owned */
    size_t n;
};

/* Adds an event on the stage's stream `main`, or on `sums`, to the capture; and the span
 * since the one before on that stream, unless `what` is NULL. */
static void mark(struct stage *st, bool sums, enum trace_row row, const char *what,
                 size_t bytes)
{
    struct spans *s = st->e->spans;
    cudaEvent_t event;
    if (!s || !CUDA(cudaEventCreate(&event)))
        return;
    size_t *last = &s->last[st->index][sums];
    if (what) {
        s->all = xrealloc(s->all, s->n + 1, sizeof *s->all);
        struct span *span = &s->all[s->n++];
        *span = (struct span){row, "", bytes, *last, s->nevents, st->index};
        snprintf(span->what, sizeof span->what, "%s", what);
    }
    s->events = xrealloc(s->events, s->nevents + 1, sizeof *s->events);
    *last = s->nevents;
    s->events[s->nevents++] = event;
    CUDA(cudaEventRecordWithFlags(event, sums ? st->sums : st->main,
                                  cudaEventRecordExternal));
}

void spans_mark(struct stage *s, enum trace_row row, const char *what)
{
    mark(s, false, row, what, 0);
}

void spans_computed(struct stage *s, const char *what)
{
    spans_mark(s, s->index == 0 ? TRACE_COMPUTE : TRACE_SECOND_STAGE, what);
}

void spans_sum(struct stage *s, const char *what, size_t bytes)
{
    mark(s, true, TRACE_TALK, what, bytes);
}

void spans_begin(struct engine *e)
{
    e->spans = e->job.trace ? xcalloc(1, sizeof *e->spans) : NULL;
    if (!e->spans)
        return;
    for (EACH_STAGE(s, e)) {
        stage_enter(s);
        spans_computed(s, NULL);
    }
}

struct spans *spans_end(struct engine *e)
{
    struct spans *s = e->spans;
    e->spans = NULL;
    return s;
}

void spans_free(struct spans *s)
{
    for (size_t i = 0; s && i < s->nevents; i++)
        cudaEventDestroy(s->events[i]);
    if (s) {
        free(s->events);
        free(s->all);
    }
    free(s);
}

static void anchor(struct stage *s)
{
    int64_t before = now_ns();
    stage_enter(s);
    cuda_doing("tracing a step");
    if (!s->anchor)
        s->anchor = event_make(s->memory, true);
    CUDA(cudaEventRecord(s->anchor, s->main));
    CUDA(cudaStreamSynchronize(s->main));
    s->anchor_ns = before + (now_ns() - before) / 2;
}

void spans_anchor(struct engine *e)
{
    int64_t since = first_of(e)->anchor_ns;
    if (!e->job.trace || e->given != e->taken ||
        (since && now_ns() - since < INT64_C(16000000000)))
        return;
    for (EACH_STAGE_BACK(s, e))
        anchor(s);
}

struct times {
    int64_t from, to;
};

static struct times times_of(const struct engine *e, int stage, cudaEvent_t from,
                             cudaEvent_t to)
{
    float begin = 0, end = 0;
    const struct stage *on = &e->stages[stage];
    CUDA(cudaEventElapsedTime(&begin, on->anchor, from));
    CUDA(cudaEventElapsedTime(&end, on->anchor, to));
    return (struct times){on->anchor_ns + (int64_t)((double)begin * 1e6),
                          on->anchor_ns + (int64_t)((double)end * 1e6)};
}

static int64_t within(const struct times *t, int64_t ns)
{
    return ns < t->from ? t->from : ns > t->to ? t->to : ns;
}

/* Reports one span. Spans of the second stage are clamped to the step, which is
 * measured by the first stage's clock: the offset between the two clocks is known only
 * as precisely as the host observed their anchors, which a busy host does late. */
static void tell(struct engine *e, const struct times *step, const struct span *is,
                 cudaEvent_t from, cudaEvent_t to)
{
    struct times t = times_of(e, is->stage, from, to);
    if (is->stage > 0)
        t = (struct times){within(step, t.from), within(step, t.to)};
    trace_span(e->job.trace, is->row, is->what, is->bytes, t.from, t.to);
}

void spans_tell(struct engine *e, const struct slot *slot)
{
    const struct spans *s = slot->spans;
    char what[32];
    if (!s || cuda_failed())
        return;
    snprintf(what, sizeof what, "step %llu", (unsigned long long)slot->of.step + 1);
    struct times step = times_of(e, 0, s->events[0], s->events[s->last[0][0]]);
    trace_span(e->job.trace, TRACE_STEP, what, 0, step.from, step.to);
    const struct span copy = {TRACE_COPY, "copy", slot->staged_bytes};
    if (!e->resident && slot->of.mine > 0)
        tell(e, &step, &copy, slot->left, slot->arrived);
    for (const struct span *p = s->all; p < s->all + s->n; p++)
        tell(e, &step, p, s->events[p->from], s->events[p->to]);
}
