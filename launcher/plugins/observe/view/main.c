/* launcher/plugins/observe/view/main.c - see view.h
 *
 * From the launcher come lines: the configuration first, then events, statuses, and heads
 * of output, each followed by as many bytes as it says.
 */
#include "launcher/plugins/observe/view/view.h"

#include "common/duration.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/output_path.h"
#include "common/text_file.h"

#include <errno.h>
#include <event2/bufferevent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

/* ms: between two writes of the metrics file; from the job's end to ours, for clients to
 * see it. Events that are kept. */
enum { FILE_MS = 10000, LINGER_MS = 3000, EVENTS_MAX = 50000 };

static const char status_head[] = "{\"is\":\"status\"",
                  output_head[] = "{\"is\":\"output\"", event_head[] = "{\"v\":";

/* --- from the launcher -------------------------------------------------------------- */

static void on_line(size_t rank, const char *text, size_t size, void *arg)
{
    struct view *v = arg;
    series_line(v->series, rank, text, size, view_seconds(v));
}

static void keep_event(struct view *v, const char *line)
{
    if (v->nevents == EVENTS_MAX) {
        size_t half = EVENTS_MAX / 2;
        for (size_t i = 0; i < half; i++)
            free(v->events[i]);
        memmove(v->events, v->events + half, (v->nevents - half) * sizeof *v->events);
        v->nevents -= half;
        v->dropped_events += half;
    }
    v->events = xroom(v->events, v->nevents, &v->events_room, sizeof *v->events);
    v->events[v->nevents++] = xstrdup(line);
}

static void take_event(struct view *v, const char *line)
{
    keep_event(v, line);
    json_auto_t *event = json_loads(line, 0, NULL);
    bool planned = is_text(event, "event", "plan");
    size_t nranks = (size_t)int_of(event, "ranks");
    if (planned && v->logs)
        logs_grow(v->logs, nranks);
    else if (planned)
        v->logs = logs_create(nranks, on_line, v);
    if (is_text(event, "event", "end")) {
        v->ended = true;
        event_add(v->end, view_watched(v) ? &(struct timeval){LINGER_MS / 1000,
                                                              LINGER_MS % 1000 * 1000}
                                          : &(struct timeval){0});
    }
}

static void take_output_head(struct view *v, const char *line)
{
    json_auto_t *head = json_loads(line, 0, NULL);
    v->output_rank = (size_t)int_of(head, "rank");
    v->output_stream = (unsigned)int_of(head, "stream");
    v->output_left = (size_t)int_of(head, "size");
}

static void take_line(struct view *v, char *line, size_t size)
{
    if (strncmp(line, status_head, sizeof status_head - 1) == 0) {
        free(v->status);
        v->status = line;
        v->nstatus = size;
        return;
    }
    if (strncmp(line, event_head, sizeof event_head - 1) == 0)
        take_event(v, line);
    else if (strncmp(line, output_head, sizeof output_head - 1) == 0)
        take_output_head(v, line);
    free(line);
}

static void take_output(struct view *v, struct evbuffer *in)
{
    size_t n = evbuffer_get_contiguous_space(in);
    n = n < v->output_left ? n : v->output_left;
    if (v->logs)
        logs_feed(v->logs, v->output_rank, v->output_stream,
                  (const char *)evbuffer_pullup(in, (ssize_t)n), n);
    evbuffer_drain(in, n);
    v->output_left -= n;
}

static void on_read(struct bufferevent *up, void *arg)
{
    struct view *v = arg;
    struct evbuffer *in = bufferevent_get_input(up);
    while (evbuffer_get_length(in) > 0) {
        size_t size;
        char *line;
        if (v->output_left > 0)
            take_output(v, in);
        else if ((line = evbuffer_readln(in, &size, EVBUFFER_EOL_LF)))
            take_line(v, line, size);
        else
            break;
    }
}

/* The launcher has ended; with an "end" before, clients have some time to see it. */
static void on_gone(struct bufferevent *up, short what, void *arg)
{
    struct view *v = arg;
    bufferevent_free(v->up);
    v->up = NULL;
    if (!v->ended)
        event_base_loopbreak(v->base);
}

/* --- timers ------------------------------------------------------------------------- */

/* A warning of the launcher's, once; or a line of our own, if it no longer listens. */
static void warn_of_file(struct view *v, const char *why)
{
    OWNED char *text =
        xasprintf("cannot write '%s' (--metrics): %s", v->metrics_file, why);
    json_auto_t *say = json_pack("{s:s, s:s%}", "do", "say", "text", text, strlen(text));
    OWNED char *line =
        say ? json_dumps(say, JSON_COMPACT) : NULL; /* NULL: it is no UTF-8 */
    if (line && v->up && !v->ended && !v->complained)
        evbuffer_add_printf(bufferevent_get_output(v->up), "%s\n", line);
    else if (!v->complained)
        fprintf(stderr, "ddprun: warning: %s\n", text);
    v->complained = true;
}

static void write_file(struct view *v)
{
    struct evbuffer *text = evbuffer_new();
    prometheus_write(v, text);
    size_t n = evbuffer_get_length(text);
    const char *bytes = (const char *)evbuffer_pullup(text, -1);
    const char *why = output_path_check(v->metrics_file, OUTPUT_PATH_REPLACED);
    if (!why && text_file_replace(v->metrics_file, bytes, n, 0666) < 0)
        why = strerror(errno);
    if (why)
        warn_of_file(v, why);
    evbuffer_free(text);
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct view *v = arg;
    static int64_t written_ms;
    bool watched = v->metrics || v->metrics_file || view_watched(v);
    if (watched)
        view_ask(v);
    if (v->metrics_file && v->status && now_ms() - written_ms >= FILE_MS) {
        written_ms = now_ms();
        write_file(v);
    }
}

static void on_end(evutil_socket_t fd, short what, void *arg)
{
    struct view *v = arg;
    if (v->metrics_file && v->status)
        write_file(v);
    event_base_loopbreak(v->base);
}

/* --- life --------------------------------------------------------------------------- */

static json_t *read_config(void)
{
    size_t n = 0, room = 0;
    OWNED char *line = NULL;
    do {
        if (n == room)
            line = xrealloc(line, room = room ? room * 2 : 4096, 1);
    } while (read(STDIN_FILENO, line + n, 1) == 1 && line[n++] != '\n');
    return json_loadb(line, n, 0, NULL);
}

static int view_open(struct view *v, struct ddp_err *err)
{
    v->created_ms = now_ms() - (int64_t)int_of(v->config, "ms");
    v->asked_ms = INT64_MIN / 2; /* never */
    v->metrics_file = text_of(v->config, "metrics_file");
    snprintf(v->token, sizeof v->token, "%s", text_or(v->config, "token", ""));
    v->base = event_base_new();
    v->series = series_create(text_of(v->config, "metric"), err);
    if (!v->series)
        return -1;
    v->up = bufferevent_socket_new(v->base, STDIN_FILENO, 0);
    v->tick = event_new(v->base, -1, EV_PERSIST, on_tick, v);
    v->end = evtimer_new(v->base, on_end, v);
    evutil_make_socket_nonblocking(STDIN_FILENO);
    bufferevent_setcb(v->up, on_read, NULL, on_gone, v);
    bufferevent_enable(v->up, EV_READ | EV_WRITE);
    event_add(v->tick, &(struct timeval){1, 0});
    return http_open(v, err);
}

static void view_close(struct view *v)
{
    http_close(v);
    if (v->up)
        bufferevent_free(v->up);
    if (v->tick)
        event_free(v->tick);
    if (v->end)
        event_free(v->end);
    if (v->base)
        event_base_free(v->base);
    for (size_t i = 0; i < v->nevents; i++)
        free(v->events[i]);
    free(v->events);
    logs_destroy(v->logs);
    if (v->series)
        series_destroy(v->series);
    free(v->status);
    free(v->page);
    json_decref(v->config);
}

static int serve(void)
{
    struct view v = {.config = read_config()};
    struct ddp_err err = {""};
    if (!v.config)
        return 1; /* the launcher has ended */
    int rc = view_open(&v, &err);
    if (rc == 0) {
        view_ask(&v);
        event_base_dispatch(v.base);
    } else {
        fprintf(stderr, "ddprun: warning: nothing is served: %s\n", err.text);
    }
    view_close(&v);
    return rc == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (argc == 2 && strcmp(argv[1], "serve") == 0) {
        /* interrupts are for the launcher, which ends us */
        signal(SIGINT, SIG_IGN);
        signal(SIGTERM, SIG_IGN);
        prctl(PR_SET_NAME, "ddprun-view");
        return serve();
    }
    /* executed in place of ddprun: --top [JOB] */
    return top_run(argc > 2 ? argv[2] : NULL);
}
