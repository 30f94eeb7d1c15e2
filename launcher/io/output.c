/* launcher/io/output.c - see output.h
 *
 * Our stdout and stderr share one sink when they refer to the same file (`2>&1`): two
 * queues would interleave within lines. A regular file is written through the inherited
 * descriptor: a newly opened one would have its own offset, and
 * `(ddprun ...; echo done) >log` would overwrite itself.
 */
#define LOG_SUBSYS "output"
#include "launcher/io/output.h"

#include "common/err.h"
#include "common/idset.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/output_path.h"
#include "launcher/io/output_lines.h"
#include "launcher/io/rankfile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { USUAL_COLUMNS = 80 }; /* of a terminal that reports no width */

/* ---- tails ---- */

static enum out_stream tail_stream(const struct rank *r)
{
    return r->streams[OUT_STDERR].tail.nbytes > 0 ? OUT_STDERR : OUT_STDOUT;
}

char *output_tail(const struct output *o, int rank)
{
    const struct rank *r = &o->ranks[rank];
    return tail_lines(&r->streams[tail_stream(r)].tail, o->tail_size);
}

struct output_seen output_seen(const struct output *o, int rank)
{
    const struct tail *out = &o->ranks[rank].streams[OUT_STDOUT].tail,
                      *err = &o->ranks[rank].streams[OUT_STDERR].tail;
    return (struct output_seen){out->nbytes + err->nbytes,
                                out->fed_ms > err->fed_ms ? out->fed_ms : err->fed_ms};
}

void output_last_line(const struct output *o, int rank, char *line, size_t size)
{
    const struct tail *out = &o->ranks[rank].streams[OUT_STDOUT].tail,
                      *err = &o->ranks[rank].streams[OUT_STDERR].tail;
    tail_last_line(err->fed_ms > out->fed_ms ? err : out, o->tail_size, line, size);
}

bool output_tail_stands(struct output *o, int rank)
{
    const struct rank *r = &o->ranks[rank];
    enum out_stream which = tail_stream(r);
    return !r->silent && o->to[which] == o->to[OUT_STDERR] &&
           o->to[which]->lines - r->streams[which].shown_at < TAIL_LINES;
}

/* ---- interface ---- */

/* Write to the rank's file, and "\r\n" as "\n". */
static void write_unix(struct output *o, int rank, enum out_stream stream,
                       const char *data, size_t size)
{
    struct stream *st = &o->ranks[rank].streams[stream];
    while (size > 0) {
        if (st->cr && *data != '\n')
            rankfiles_write(o->files, rank, stream, "\r", 1);
        const char *cr = memchr(data, '\r', size);
        size_t n = cr ? (size_t)(cr - data) : size;
        if (n > 0)
            rankfiles_write(o->files, rank, stream, data, n);
        st->cr = cr != NULL;
        n += st->cr;
        data += n;
        size -= n;
    }
}

void output_feed(struct output *o, int rank, enum out_stream stream, const void *data,
                 size_t size)
{
    struct rank *r = &o->ranks[rank];
    if (size == 0)
        return;
    tail_feed(&r->streams[stream].tail, o->tail_size, data, size);
    if (o->files && o->pty)
        write_unix(o, rank, stream, data, size);
    else if (o->files)
        rankfiles_write(o->files, rank, stream, data, size);
    if (r->silent)
        return;
    if (o->raw)
        sink_put(o->to[stream], data, size);
    else
        lines_feed(o, rank, stream, data, size);
}

void output_end(struct output *o, int rank, enum out_stream stream)
{
    struct stream *st = &o->ranks[rank].streams[stream];
    if (st->cr)
        rankfiles_write(o->files, rank, stream, "\r", 1);
    st->cr = false;
    lines_end(o, rank, stream);
}

/* Parse --output-from; error if it names ranks that do not exist. */
static int ranks_shown(const struct opts *opts, int nranks, struct idset *set,
                       struct ddp_err *err)
{
    if (idset_parse(opts->output_from, set, err) < 0)
        return err_prefix(err, "--output-from '%s'", opts->output_from);
    if (set->n > 0 && set->spans[set->n - 1].hi >= nranks)
        return err_set(err, "--output-from '%s': there are ranks 0 to %d only",
                       opts->output_from, nranks - 1);
    return 0;
}

/* Are lines tagged, given the number of ranks printed? */
static bool with_tags(const struct opts *opts, int shown)
{
    return opts->tag_output == TAG_ON || (opts->tag_output == TAG_AUTO && shown > 1);
}

/* Applies --output-from; returns the number of ranks printed. */
static int choose_ranks(struct output *o)
{
    SCOPED(idset_finish) struct idset set = {0};
    int n = 0;
    if (o->opts->output_from)
        ranks_shown(o->opts, o->nranks, &set, NULL);
    for (int rank = 0; rank < o->nranks; rank++) {
        o->ranks[rank].silent = o->opts->output_from && !idset_has(&set, rank);
        n += !o->ranks[rank].silent;
    }
    return n;
}

void output_add_ranks(struct output *o, int nranks)
{
    for (int r = 0; r < o->nranks; r++) {
        free(o->ranks[r].tag); /* the rank may have moved */
        o->ranks[r].tag = NULL;
    }
    if (nranks <= o->nranks)
        return;
    o->ranks = xgrow(o->ranks, (size_t)o->nranks, (size_t)nranks, sizeof *o->ranks);
    o->nranks = nranks;
    if (o->files)
        rankfiles_add_ranks(o->files, nranks);
    int shown = choose_ranks(o);
    bool was_raw = o->raw;
    o->tags = with_tags(o->opts, shown);
    o->raw = shown < 2 && !o->tags && !o->times;
    for (size_t i = 0; i < ARRAY_LEN(o->sinks); i++) {
        if (was_raw && !o->raw && o->sinks[i].midline)
            sink_put(&o->sinks[i], "\n", 1);
    }
}

void output_renew(struct output *o, int nranks, const char *mark)
{
    output_add_ranks(o, nranks);
    if (o->files)
        rankfiles_next_attempt(o->files, nranks, mark);
    for (int r = 0; r < o->nranks; r++) {
        o->ranks[r].streams[OUT_STDOUT].tail.nbytes = 0;
        o->ranks[r].streams[OUT_STDERR].tail.nbytes = 0;
    }
}

void output_line(struct output *o, enum out_stream which, const char *line)
{
    struct sink *s = o->to[which];
    const char *end = o->pty && s->terminal ? "\r\n" : "\n";
    if (s->drawn)
        sink_put(s, CLEAR_LINE, strlen(CLEAR_LINE));
    else if (s->midline)
        sink_put(s, end, strlen(end));
    sink_at_start(s);
    sink_put(s, line, strlen(line));
    sink_put(s, end, strlen(end));
}

void output_of_pty(struct output *o, bool pty)
{
    o->pty = pty;
}

void output_typed(struct output *o)
{
    for (size_t i = 0; i < ARRAY_LEN(o->to); i++) {
        if (o->to[i]->terminal)
            sink_at_start(o->to[i]);
    }
}

size_t output_room(const struct output *o)
{
    size_t most = 0;
    for (size_t i = 0; i < o->nwriters; i++) {
        size_t n = writer_pending(o->writers[i]);
        most = n > most ? n : most;
    }
    return most < WRITER_HIGH ? WRITER_HIGH - most : 0;
}

static void end_all(struct output *o)
{
    for (int rank = 0; rank < o->nranks; rank++) {
        output_end(o, rank, OUT_STDOUT);
        output_end(o, rank, OUT_STDERR);
    }
}

void output_prepare(struct output *o)
{
    writer_prepare(o->to[OUT_STDERR]->writer);
}

bool output_finish(struct output *o)
{
    bool written = true;
    end_all(o);
    for (size_t i = 0; i < o->nwriters; i++)
        written &= writer_finish(o->writers[i]);
    return written;
}

int output_flush(struct output *o, int64_t deadline_ms)
{
    bool written = true;
    end_all(o);
    for (size_t i = 0; i < o->nwriters; i++)
        written &= writer_wait(o->writers[i], deadline_ms);
    return written && !o->sinks[0].lost && !o->sinks[1].lost ? 0 : -1;
}

/* ---- callbacks ---- */

static void on_drained(void *arg)
{
    struct output *o = arg;
    if (output_room(o) > 0)
        o->events->room(o->arg);
}

static void on_sink_drained(void *arg)
{
    on_drained(((struct sink *)arg)->output);
}

/* That the reader of stderr has left is no failure. */
static void on_sink_failed(int error, void *arg)
{
    struct sink *s = arg;
    struct output *o = s->output;
    bool reader_left = error == EPIPE || error == ECONNRESET;
    char why[160];
    s->lost = true;
    snprintf(why, sizeof why, "cannot write to %s: %s", s->name, strerror(error));
    if (!reader_left)
        o->events->failed(why, o->arg);
    else if (s == o->to[OUT_STDOUT])
        o->events->reader_left(o->arg);
}

static void on_prompt(evutil_socket_t fd, short what, void *arg)
{
    lines_show_partials(arg);
}

/* The output of ranks that are not printed is nowhere else. */
static void on_files_failed(int error, void *arg)
{
    struct output *o = arg;
    int printed = 0;
    while (printed < o->nranks && !o->ranks[printed].silent)
        printed++;
    OWNED char *why = xasprintf(
        "cannot write '%s': %s; files of --output-filename are incomplete",
        rankfiles_failed(o->files),
        error == EWOULDBLOCK ? "another job writes it" : output_path_error(error));
    if (printed == o->nranks)
        log_error("%s, the terminal is not", why);
    else
        o->events->failed(why, o->arg);
}

/* ---- create, destroy ---- */

static struct rankfiles *create_files(const struct opts *o, int nranks,
                                      const struct output_hosts *hosts, void *arg,
                                      struct ddp_err *err)
{
    bool again = o->max_restarts > 0 || o->spares > 0 || o->min_nnodes > 0 ||
                 o->node_wait_ms > 0 || o->discovery;
    return rankfiles_create(o->output_filename, nranks, again, hosts->in_path, arg, err);
}

int output_check(const struct opts *opts, int nranks, const struct output_hosts *hosts,
                 void *arg, struct ddp_err *err)
{
    SCOPED(idset_finish) struct idset set = {0};
    int known = opts->output_from ? ranks_shown(opts, nranks, &set, err) : 0;
    if (known < 0 || !opts->output_filename)
        return known;
    struct rankfiles *f = create_files(opts, nranks, hosts, arg, err);
    int rc = f ? rankfiles_check_paths(f, err) : -1;
    rankfiles_destroy(f);
    return rc;
}

int output_columns(const struct opts *opts, int nranks, int host_width)
{
    struct winsize size;
    if (!sink_redraws(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0)
        return 0;
    SCOPED(idset_finish) struct idset set = {0};
    int shown = nranks;
    if (opts->output_from && ranks_shown(opts, nranks, &set, NULL) == 0)
        shown = (int)idset_count(&set);
    int used = opts->timestamp_output ? (int)strlen("2026-11-21T05:44:26.123+0100 ") : 0;
    if (with_tags(opts, shown))
        used += snprintf(NULL, 0, "[%d] ", nranks - 1) + host_width + (host_width > 0);
    int columns = size.ws_col > 0 ? size.ws_col : USUAL_COLUMNS;
    return columns > used ? columns - used : 0;
}

static int add_writer(struct output *o, struct writer *w)
{
    if (w)
        o->writers[o->nwriters++] = w;
    return w ? 0 : -1;
}

static int open_sink(struct output *o, enum out_stream which, struct loop *loop,
                     struct ddp_err *err)
{
    static const int fds[] = {STDOUT_FILENO, STDERR_FILENO};
    struct sink *s = &o->sinks[which];
    o->to[which] = s;
    *s = (struct sink){.output = o,
                       .name = which == OUT_STDOUT ? "stdout" : "stderr",
                       .terminal = sink_redraws(fds[which])};
    s->writer = writer_create_fd(
        loop, fds[which], false,
        &(struct writer_events){on_sink_drained, on_sink_failed, s}, err);
    return add_writer(o, s->writer);
}

static int open_sinks(struct output *o, struct loop *loop, struct ddp_err *err)
{
    TRY(open_sink(o, OUT_STDOUT, loop, err));
    o->to[OUT_STDERR] = o->to[OUT_STDOUT];
    return sink_same(STDOUT_FILENO, STDERR_FILENO) ? 0
                                                   : open_sink(o, OUT_STDERR, loop, err);
}

static int open_files(struct output *o, struct loop *loop, struct ddp_err *err)
{
    struct writer_events events = {on_drained, on_files_failed, o};
    if (!o->opts->output_filename)
        return 0;
    o->files = create_files(o->opts, o->nranks, o->hosts, o->arg, err);
    if (!o->files)
        return -1;
    if (add_writer(o, rankfiles_open(o->files, loop, &events, err)) == 0)
        return 0;
    rankfiles_destroy(o->files);
    return -1;
}

struct output *output_create(struct loop *loop, const struct opts *opts, int nranks,
                             const struct output_hosts *hosts,
                             const struct output_events *events, void *arg,
                             struct ddp_err *err)
{
    struct output *o = xcalloc(1, sizeof *o);
    o->opts = opts;
    o->nranks = nranks;
    o->tail_size = tail_size(2 * (size_t)nranks);
    o->ranks = xcalloc((size_t)nranks, sizeof *o->ranks);
    o->hosts = hosts;
    o->events = events;
    o->arg = arg;
    o->second_s = -1;
    int shown = choose_ranks(o);
    o->tags = with_tags(opts, shown);
    o->times = opts->timestamp_output;
    o->raw = shown < 2 && !o->tags && !o->times;
    if (open_sinks(o, loop, err) < 0 || open_files(o, loop, err) < 0) {
        output_destroy(o);
        return NULL;
    }
    if (o->to[OUT_STDOUT]->terminal || o->to[OUT_STDERR]->terminal)
        o->prompt = loop_timer(loop, on_prompt, o);
    return o;
}

void output_destroy(struct output *o)
{
    if (!o)
        return;
    loop_free(o->prompt);
    for (size_t i = 0; i < o->nwriters; i++)
        writer_destroy(o->writers[i]);
    for (int rank = 0; rank < o->nranks; rank++) {
        for (int i = 0; i < 2; i++) {
            free(o->ranks[rank].streams[i].partial);
            free(o->ranks[rank].streams[i].tail.ring);
        }
        free(o->ranks[rank].tag);
    }
    free(o->ranks);
    free(o);
}
