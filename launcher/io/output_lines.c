/* launcher/io/output_lines.c - see output_lines.h
 *
 * A stream (one of two per rank) holds at most one partial line; whole lines that arrive
 * in one piece go from the caller's buffer to the sink in one copy.
 *
 * A terminal differs in two ways. A carriage return ends a piece too, since progress bars
 * use it: each update is printed under its tag, and the next line erases it. And a
 * partial line that gets no more bytes for PROMPT_MS is printed, since it may be a
 * prompt; the rest follows on the same line, or on a new line if another stream has
 * written since.
 */
#include "launcher/io/output_lines.h"

#include "common/duration.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

/* bytes: a line is held until it is complete. While all streams together hold more than
 * HELD_MAX, one longer than SHOWN_MAX is printed as it arrives, so that streams without
 * newlines do not exhaust the memory. */
enum { HELD_MAX = 256 << 20, SHOWN_MAX = 64 << 10 };
enum { PROMPT_MS = 100 };

/* "2026-11-21T05:44:26.123+0100 "; strftime() runs once per second. */
static size_t put_time(struct output *o, char *to, int64_t ms)
{
    time_t s = (time_t)(ms / 1000);
    if (s != o->second_s) {
        struct tm tm;
        localtime_r(&s, &tm);
        strftime(o->second, sizeof o->second, "%Y-%m-%dT%H:%M:%S.", &tm);
        strftime(o->zone, sizeof o->zone, "%z ", &tm);
        o->second_s = s;
    }
    int frac = (int)(ms % 1000);
    char *p = stpcpy(to, o->second);
    *p++ = (char)('0' + frac / 100);
    *p++ = (char)('0' + frac / 10 % 10);
    *p++ = (char)('0' + frac % 10);
    return (size_t)(stpcpy(p, o->zone) - to);
}

static void make_tag(struct output *o, int rank)
{
    struct rank *r = &o->ranks[rank];
    const char *host = o->hosts->in_tag(rank, o->arg);
    const char *job = o->opts->spawn_number;
    r->tag = o->tags ? xasprintf("[%s%s%d%s%s] ", job ? job : "", job ? ":" : "", rank,
                                 host ? " " : "", host ? host : "")
                     : xstrdup("");
    r->ntag = strlen(r->tag);
}

/* For sink.open. */
static int stream_number(int rank, enum out_stream which)
{
    return rank * 2 + (int)which + 1;
}

/* Start a line: end or erase what is on the screen's line, then time and tag. */
static char *put_head(struct output *o, int rank, enum out_stream which, char *p)
{
    struct rank *r = &o->ranks[rank];
    const struct stream *st = &r->streams[which];
    struct sink *sink = o->to[which];
    if (sink->open)
        *p++ = '\n';
    if (sink->drawn)
        p = stpcpy(p, CLEAR_LINE);
    sink_at_start(sink);
    if (o->times)
        p += put_time(o, p, st->npartial > 0 ? st->since_ms : wall_ns() / 1000000);
    return mempcpy(p, r->tag, r->ntag);
}

/* Print one line: the held bytes, then `text`, then `end`: '\n', '\r', or '\0' for a line
 * that will be continued. */
static void emit(struct output *o, int rank, enum out_stream which, const char *text,
                 size_t size, char end)
{
    struct rank *r = &o->ranks[rank];
    struct stream *st = &r->streams[which];
    struct sink *sink = o->to[which];
    int number = stream_number(rank, which);
    if (!r->tag)
        make_tag(o, rank);
    char *start = writer_reserve(sink->writer, r->ntag + st->npartial + size + 64),
         *p = start;
    if (sink->open != number)
        p = put_head(o, rank, which, p);
    if (st->npartial > 0)
        p = mempcpy(p, st->partial, st->npartial);
    p = mempcpy(p, text, size);
    if (end != '\0')
        *p++ = end;
    sink_commit(sink, (size_t)(p - start));
    sink->drawn = end == '\r';
    sink->open = end == '\0' ? number : 0;
    sink->lines += end == '\n';
    st->shown_at = sink->lines;
    o->held -= st->npartial;
    st->npartial = 0;
    if (st->room > SHOWN_MAX) {
        free(st->partial);
        st->partial = NULL;
        st->room = 0;
    }
}

static void hold(struct output *o, struct stream *st, const char *data, size_t size)
{
    if (st->npartial == 0)
        st->since_ms = wall_ns() / 1000000;
    if (st->room - st->npartial < size) {
        st->room = st->npartial + size < 512 ? 512 : (st->npartial + size) * 2;
        st->partial = xrealloc(st->partial, st->room, 1);
    }
    memcpy(st->partial + st->npartial, data, size);
    st->npartial += size;
    o->held += size;
}

/* Length of the first complete piece of `data` with its terminator; 0: none. "\r\n" and
 * "\r\r\n" (a terminal's echo of one) end a line, a '\r' before another byte is a redraw;
 * one at the very end is undecided. */
static size_t ended_piece(const char *data, size_t size, bool terminal)
{
    const char *nl = memchr(data, '\n', size);
    const char *cr =
        terminal ? memchr(data, '\r', nl ? (size_t)(nl - data) : size) : NULL;
    if (cr) {
        const char *end = data + size;
        while (cr + 1 < end && cr[1] == '\r')
            cr++;
        if (cr + 1 < end && cr[1] != '\n')
            return (size_t)(cr - data) + 1;
    }
    return nl ? (size_t)(nl - data) + 1 : 0;
}

static void feed_lines(struct output *o, int rank, enum out_stream which,
                       const char *data, size_t size)
{
    struct stream *st = &o->ranks[rank].streams[which];
    while (size > 0) {
        size_t n = ended_piece(data, size, false);
        if (n > 0) {
            emit(o, rank, which, data, n - 1, '\n');
        } else {
            n = size;
            hold(o, st, data, n);
            bool too_long = o->held > HELD_MAX && st->npartial > SHOWN_MAX;
            if (too_long || o->to[which]->open == stream_number(rank, which))
                emit(o, rank, which, "", 0, '\0');
        }
        data += n;
        size -= n;
    }
}

/* As feed_lines(), but all bytes go through `partial`: a redraw may have begun in an
 * earlier call. */
static void feed_terminal(struct output *o, int rank, enum out_stream which,
                          const char *data, size_t size)
{
    struct stream *st = &o->ranks[rank].streams[which];
    hold(o, st, data, size);
    OWNED char *all = st->partial;
    size_t nall = st->npartial, done = 0, n;
    st->partial = NULL; /* emit() must see no held bytes */
    st->npartial = st->room = 0;
    o->held -= nall;
    while ((n = ended_piece(all + done, nall - done, true)) > 0 ||
           nall - done >= SHOWN_MAX) {
        char *piece = all + done;
        size_t len = n ? n - 1 : SHOWN_MAX;
        char end = n ? piece[len] : '\0'; /* a long one is printed in parts */
        done += n ? n : SHOWN_MAX;
        while (len > 0 && (*piece == '\r' || piece[len - 1] == '\r')) {
            piece += *piece == '\r';
            len--;
        }
        if (len > 0 || end == '\n' || o->to[which]->open == stream_number(rank, which))
            emit(o, rank, which, piece, len, end);
    }
    if (done < nall) {
        hold(o, st, all + done, nall - done);
        loop_arm(o->prompt, PROMPT_MS);
    }
}

void lines_show_partials(struct output *o)
{
    for (int rank = 0; rank < o->nranks; rank++) {
        for (int i = OUT_STDOUT; i <= OUT_STDERR; i++) {
            const struct stream *st = &o->ranks[rank].streams[i];
            bool may_end = st->npartial > 0 && st->partial[st->npartial - 1] == '\r';
            if (o->to[i]->terminal && st->npartial > 0 && !may_end)
                emit(o, rank, (enum out_stream)i, "", 0, '\0');
        }
    }
}

void lines_feed(struct output *o, int rank, enum out_stream which, const char *data,
                size_t size)
{
    if (o->to[which]->terminal)
        feed_terminal(o, rank, which, data, size);
    else
        feed_lines(o, rank, which, data, size);
}

void lines_end(struct output *o, int rank, enum out_stream which)
{
    struct stream *st = &o->ranks[rank].streams[which];
    if (st->npartial > 0 || o->to[which]->open == stream_number(rank, which))
        emit(o, rank, which, "", 0, '\n');
}
