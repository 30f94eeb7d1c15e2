/* launcher/plugins/observe/view/logs.c - see logs.h
 *
 * A progress bar redraws its line after a carriage return: of such lines one per second
 * is kept.
 */
#include "launcher/plugins/observe/view/logs.h"

#include "common/duration.h"
#include "common/mem.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* bytes: for all ranks, for one at least and at most, of a line; ms between redraws */
enum {
    ALL_MAX = 256 << 20,
    LOG_MIN = 64 << 10,
    LOG_MAX = 4 << 20,
    LINE_MAX_SIZE = 64 << 10,
    REDRAW_MS = 1000
};

struct log {
    char *text; /* owned: whole lines */
    size_t n, room;
    uint64_t dropped; /* bytes in front of `text` */
    struct partial {
        char *text; /* owned */
        size_t n, room;
        int64_t redrawn_ms;
    } partials[2];
};

struct logs {
    size_t nranks, most;
    struct log *logs; /* owned */
    void (*line)(size_t rank, const char *text, size_t size, void *arg);
    void *arg;
};

struct logs *logs_create(size_t nranks,
                         void (*line)(size_t rank, const char *text, size_t size,
                                      void *arg),
                         void *arg)
{
    struct logs *l = xcalloc(1, sizeof *l);
    size_t most = ALL_MAX / (nranks ? nranks : 1);
    most = most < LOG_MIN ? LOG_MIN : most > LOG_MAX ? LOG_MAX : most;
    *l = (struct logs){.nranks = nranks, .most = most, .line = line, .arg = arg};
    l->logs = xcalloc(nranks, sizeof *l->logs);
    return l;
}

void logs_grow(struct logs *l, size_t nranks)
{
    if (nranks <= l->nranks)
        return;
    l->logs = xgrow(l->logs, l->nranks, nranks, sizeof *l->logs);
    l->nranks = nranks;
}

void logs_destroy(struct logs *l)
{
    for (size_t r = 0; l && r < l->nranks; r++) {
        free(l->logs[r].text);
        free(l->logs[r].partials[0].text);
        free(l->logs[r].partials[1].text);
    }
    if (l)
        free(l->logs);
    free(l);
}

/* Half of a full log is dropped, at a line's end. */
static void make_room(const struct logs *l, struct log *log, size_t size)
{
    if (log->n + size > l->most) {
        size_t half = log->n / 2;
        const char *nl = memchr(log->text + half, '\n', log->n - half);
        size_t cut = nl ? (size_t)(nl + 1 - log->text) : log->n;
        memmove(log->text, log->text + cut, log->n - cut);
        log->n -= cut;
        log->dropped += cut;
    }
    if (log->n + size > log->room) {
        log->room = (log->n + size) * 2;
        log->text = xrealloc(log->text, log->room, 1);
    }
}

static void keep_line(struct logs *l, size_t rank, const char *line, size_t size)
{
    struct log *log = &l->logs[rank];
    make_room(l, log, size + 1);
    memcpy(log->text + log->n, line, size);
    log->text[log->n + size] = '\n';
    log->n += size + 1;
    l->line(rank, line, size, l->arg);
}

static void end_line(struct logs *l, size_t rank, struct partial *p, bool redraw)
{
    int64_t now = redraw ? now_ms() : 0;
    if (p->n > 0 && (!redraw || now - p->redrawn_ms >= REDRAW_MS)) {
        keep_line(l, rank, p->text, p->n);
        p->redrawn_ms = now;
    } else if (!redraw && p->redrawn_ms == 0) {
        keep_line(l, rank, "", 0);
    }
    p->redrawn_ms = redraw ? p->redrawn_ms : 0;
    p->n = 0;
}

static void hold(struct partial *p, const char *data, size_t size)
{
    size_t left = LINE_MAX_SIZE - p->n, n = size < left ? size : left;
    if (p->n + n > p->room) {
        p->room = (p->n + n) * 2;
        p->text = xrealloc(p->text, p->room, 1);
    }
    if (n > 0)
        memcpy(p->text + p->n, data, n);
    p->n += n;
}

void logs_feed(struct logs *l, size_t rank, unsigned stream, const char *data,
               size_t size)
{
    if (rank >= l->nranks || stream > 1)
        return;
    struct partial *p = &l->logs[rank].partials[stream];
    for (const char *end = data + size; data < end;) {
        const char *stop = data;
        while (stop < end && *stop != '\n' && *stop != '\r')
            stop++;
        hold(p, data, (size_t)(stop - data));
        if (stop == end)
            return;
        bool crlf = *stop == '\r' && stop + 1 < end && stop[1] == '\n';
        end_line(l, rank, p, *stop == '\r' && !crlf);
        data = stop + (crlf ? 2 : 1);
    }
}

const char *logs_read(const struct logs *l, size_t rank, int64_t *from, size_t most,
                      size_t *size)
{
    if (rank >= l->nranks)
        return NULL;
    const struct log *log = &l->logs[rank];
    uint64_t end = log->dropped + log->n, start = (uint64_t)*from;
    if (*from < 0)
        start = log->n > most ? end - most : log->dropped;
    start = start < log->dropped ? log->dropped : start > end ? end : start;
    *size = end - start < most ? (size_t)(end - start) : most;
    *from = (int64_t)start;
    return log->text ? log->text + (start - log->dropped) : "";
}

static bool has(const char *line, size_t size, const char *what, size_t n)
{
    for (size_t i = 0; i + n <= size; i++) {
        if (strncasecmp(line + i, what, n) == 0)
            return true;
    }
    return false;
}

void logs_search(const struct logs *l, const char *what, size_t most,
                 void (*found)(size_t rank, const char *line, size_t size, void *arg),
                 void *arg)
{
    size_t n = strlen(what);
    for (size_t r = 0; r < l->nranks && most > 0; r++) {
        const struct log *log = &l->logs[r];
        for (size_t at = 0; at < log->n && most > 0;) {
            const char *line = log->text + at;
            size_t size = (size_t)((const char *)memchr(line, '\n', log->n - at) - line);
            if (has(line, size, what, n)) {
                found(r, line, size, arg);
                most--;
            }
            at += size + 1;
        }
    }
}
