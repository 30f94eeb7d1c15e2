/* launcher/plugins/observe/view/view.h - ddprun-view: what ddprun shows of a running job
 *
 * A program of its own, so that HTTP costs a launch nothing and its faults end no job.
 * `ddprun-view serve` is a child of ddprun (--ui, --metrics): on descriptor 0 it gets the
 * events, the output of the ranks and answers to its requests for the status (control.h).
 * It serves the page and metrics, and exits soon after its launcher. Executed in place of
 * ddprun (--top), it shows the status in a terminal.
 *
 * main.c: the link to the launcher; clients.c: whether a client watches; http.c: pages;
 * prometheus.c: metrics; logs.c and series.c: what ranks print; top.c: the terminal.
 */
#ifndef LAUNCHER_PLUGINS_OBSERVE_VIEW_VIEW_H
#define LAUNCHER_PLUGINS_OBSERVE_VIEW_VIEW_H

#include "include/ddprun/err.h"
#include "launcher/plugins/observe/view/logs.h"
#include "launcher/plugins/observe/view/series.h"

#include <event2/buffer.h>
#include <event2/event.h>
#include <event2/http.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

enum { VIEW_UI_FD = 63, VIEW_METRICS_FD = 1 }; /* listening sockets, if there are any */

struct view {
    struct event_base *base;     /* owned */
    struct bufferevent *up;      /* owned; NULL: the launcher has ended */
    struct evhttp *ui, *metrics; /* owned; NULL: not asked for */
    char *page;                  /* owned: the HTML file */
    char token[64];              /* of the page's requests */
    const char *metrics_file;    /* borrowed from `config`; NULL: none */
    bool complained;             /* that it cannot be written */
    json_t *config;              /* owned */
    char *status;                /* owned: the last answer, as text; NULL: none yet */
    size_t nstatus;
    char **events;                               /* owned, as text */
    size_t nevents, events_room, dropped_events; /* the first `dropped` were dropped */
    struct logs *logs;     /* owned; NULL: the number of ranks is not known yet */
    struct series *series; /* owned */
    size_t output_rank, output_left; /* bytes of output that follow */
    unsigned output_stream;
    int64_t created_ms, asked_ms; /* the last request of a client */
    struct event *tick, *end;     /* owned */
    bool ended, end_seen;         /* the job has ended; a client has seen that */
};

/* clients.c */
double view_seconds(const struct view *v); /* since the start */
void view_ask(struct view *v);             /* the launcher, for the status */
void view_asked(struct view *v);           /* a client watches: keep the status fresh */
bool view_watched(const struct view *v);   /* a client has asked a short time ago */
void view_done(struct view *v);            /* a client has seen the end */

/* http.c */
int http_open(struct view *v, struct ddp_err *err);
void http_close(struct view *v);

/* prometheus.c: metrics as text */
void prometheus_write(const struct view *v, struct evbuffer *out);

/* top.c */
int top_run(const char *job);

#endif
