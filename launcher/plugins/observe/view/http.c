/* launcher/plugins/observe/view/http.c - the page and its data, over HTTP
 *
 * Requests to the page's port need the token, in the URL (?t=) or as a bearer: another
 * user of this machine can connect, but does not know it. The port of --metrics serves
 * /metrics only, without a token. A request is answered at once from what is known.
 */
#include "launcher/plugins/observe/view/view.h"

#include "common/err.h"
#include "common/installed.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/text_file.h"

#include <event2/http.h>
#include <event2/keyvalq_struct.h>
#include <event2/listener.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <unistd.h>

/* bytes: of a request's head and body, of one answer with a log; found lines; seconds
 * that a connection may be idle */
enum { HEAD_MAX = 16 << 10, BODY_MAX = 256 << 10, TEXT_MAX = 256 << 10, FOUND_MAX = 500 };
enum { IDLE_S = 60 };

/* No script, style or image but the page's own; nothing is cached. */
static const char policy[] =
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

/* A request, and what is answered. */
struct exchange {
    struct evhttp_request *req;
    struct evkeyvalq query;
    struct evbuffer *body;
};

static long long number(struct exchange *x, const char *name, long long otherwise)
{
    const char *text = evhttp_find_header(&x->query, name);
    return text ? strtoll(text, NULL, 10) : otherwise;
}

/* --- pages -------------------------------------------------------------------------- */

static void get_page(struct view *v, struct exchange *x)
{
    evbuffer_add_reference(x->body, v->page, strlen(v->page), NULL, NULL);
}

static void get_status(struct view *v, struct exchange *x)
{
    view_asked(v);
    if (v->status)
        evbuffer_add(x->body, v->status, v->nstatus);
    else
        evbuffer_add_printf(x->body, "null");
}

/* Those from number `from` on: {"next": 7, "events": [...]}. */
static void get_events(struct view *v, struct exchange *x)
{
    long long from = number(x, "from", 0) - (long long)v->dropped_events;
    size_t first = from < 0 ? 0 : (size_t)from;
    evbuffer_add_printf(x->body, "{\"next\":%zu,\"events\":[",
                        v->dropped_events + v->nevents);
    for (size_t i = first; i < v->nevents; i++)
        evbuffer_add_printf(x->body, "%s%s", i > first ? "," : "", v->events[i]);
    evbuffer_add_printf(x->body, "]}");
    view_done(v);
}

/* The text of a rank's log; the header X-Next has the position behind it. */
static void get_log(struct view *v, struct exchange *x)
{
    int64_t from = number(x, "from", -1);
    size_t size = 0;
    const char *text =
        v->logs ? logs_read(v->logs, (size_t)number(x, "rank", 0), &from, TEXT_MAX, &size)
                : NULL;
    char next[32];
    if (size > 0)
        evbuffer_add(x->body, text, size);
    snprintf(next, sizeof next, "%lld", text ? (long long)from + (long long)size : -1);
    evhttp_add_header(evhttp_request_get_output_headers(x->req), "X-Next", next);
}

static void add_found(size_t rank, const char *line, size_t size, void *arg)
{
    evbuffer_add_printf(arg, "%zu\t%.*s\n", rank, (int)(size < 2000 ? size : 2000), line);
}

/* Lines "rank TAB line". */
static void get_search(struct view *v, struct exchange *x)
{
    const char *what = evhttp_find_header(&x->query, "q");
    if (what && *what && v->logs)
        logs_search(v->logs, what, FOUND_MAX, add_found, x->body);
}

/* {"loss": [[t, value], ...], ...}; JSON has no NaN: null. */
static void get_series(struct view *v, struct exchange *x)
{
    const struct point *p;
    const char *name;
    size_t n;
    evbuffer_add_printf(x->body, "{");
    for (size_t i = 0; series_get(v->series, i, &name, &p, &n); i++) {
        evbuffer_add_printf(x->body, "%s\"%s\":[", i ? "," : "", name);
        for (size_t k = 0; k < n; k++) {
            bool finite = p[k].value - p[k].value == 0;
            evbuffer_add_printf(x->body, "%s[%.3f,", k ? "," : "", p[k].t);
            evbuffer_add_printf(x->body, finite ? "%.9g]" : "null]", p[k].value);
        }
        evbuffer_add_printf(x->body, "]");
    }
    evbuffer_add_printf(x->body, "}");
}

static void get_metrics(struct view *v, struct exchange *x)
{
    prometheus_write(v, x->body);
}

/* What Hugging Face's Trainer reports to Kubeflow's controller. */
static void post_trainer(struct view *v, struct exchange *x)
{
    static const struct {
        const char *theirs, *ours; /* NULL: not shown */
    } names[] = {
        {"current_step", "step"}, {"current_epoch", "epoch"}, {"total_steps", NULL}};
    struct evbuffer *in = evhttp_request_get_input_buffer(x->req);
    json_auto_t *root = json_loadb((const char *)evbuffer_pullup(in, -1),
                                   evbuffer_get_length(in), 0, NULL);
    const json_t *status = json_object_get(root, "trainerStatus"), *m;
    const json_t *percent = json_object_get(status, "progressPercentage");
    const json_t *left = json_object_get(status, "estimatedRemainingSeconds");
    double t = view_seconds(v);
    size_t i;
    json_array_foreach (json_object_get(status, "metrics"), i, m) {
        const char *name = text_of(m, "name");
        const char *value = text_of(m, "value");
        for (size_t k = 0; name && k < ARRAY_LEN(names); k++)
            name = strcmp(name, names[k].theirs) == 0 ? names[k].ours : name;
        if (name && value)
            series_add(v->series, 0, name, t, strtod(value, NULL));
    }
    if (percent)
        series_add(v->series, 0, "progress", t, json_number_value(percent) / 100);
    if (left)
        series_add(v->series, 0, "remaining_s", t, json_number_value(left));
}

static const char plain[] = "text/plain; charset=utf-8", json[] = "application/json";

static const struct route {
    const char *path;
    enum evhttp_cmd_type method;
    const char *type;
    void (*handle)(struct view *v, struct exchange *x);
    bool for_metrics; /* on the port of --metrics, too */
} routes[] = {
    {"/", EVHTTP_REQ_GET, "text/html; charset=utf-8", get_page},
    {"/api/status", EVHTTP_REQ_GET, json, get_status},
    {"/api/events", EVHTTP_REQ_GET, json, get_events},
    {"/api/log", EVHTTP_REQ_GET, plain, get_log},
    {"/api/search", EVHTTP_REQ_GET, plain, get_search},
    {"/api/series", EVHTTP_REQ_GET, json, get_series},
    {"/api/trainer", EVHTTP_REQ_POST, json, post_trainer},
    {"/metrics", EVHTTP_REQ_GET, "text/plain; version=0.0.4; charset=utf-8", get_metrics,
     .for_metrics = true},
};

/* --- requests ----------------------------------------------------------------------- */

/* In a time that does not depend on where they differ. */
static bool same_token(const char *token, const char *given)
{
    size_t n = strlen(token);
    unsigned differ = 0;
    if (strlen(given) != n)
        return false;
    for (size_t i = 0; i < n; i++)
        differ |= (unsigned)(token[i] ^ given[i]);
    return !differ;
}

static bool knows_token(const struct view *v, struct exchange *x)
{
    static const char bearer[] = "Bearer ";
    const char *given = evhttp_find_header(&x->query, "t");
    const char *head =
        evhttp_find_header(evhttp_request_get_input_headers(x->req), "Authorization");
    if (head && strncmp(head, bearer, sizeof bearer - 1) == 0)
        given = head + sizeof bearer - 1;
    return given && same_token(v->token, given);
}

static const struct route *find_route(const char *path, enum evhttp_cmd_type method)
{
    for (size_t i = 0; path && i < ARRAY_LEN(routes); i++) {
        if (strcmp(routes[i].path, path) == 0 && routes[i].method == method)
            return &routes[i];
    }
    return NULL;
}

static void answer(struct view *v, const struct route *r, struct exchange *x)
{
    struct evkeyvalq *head = evhttp_request_get_output_headers(x->req);
    x->body = evbuffer_new();
    r->handle(v, x);
    evhttp_add_header(head, "Content-Type", r->type);
    evhttp_add_header(head, "Cache-Control", "no-store");
    evhttp_add_header(head, "Content-Security-Policy", policy);
    evhttp_add_header(head, "Referrer-Policy", "no-referrer");
    evhttp_add_header(head, "X-Content-Type-Options", "nosniff");
    evhttp_send_reply(x->req, HTTP_OK, "OK", x->body);
    evbuffer_free(x->body);
}

static void handle(struct view *v, struct evhttp_request *req, bool metrics_only)
{
    const struct evhttp_uri *uri = evhttp_request_get_evhttp_uri(req);
    const struct route *r =
        find_route(evhttp_uri_get_path(uri), evhttp_request_get_command(req));
    const char *text = evhttp_uri_get_query(uri);
    struct exchange x = {.req = req};
    TAILQ_INIT(&x.query);
    if (text)
        evhttp_parse_query_str(text, &x.query);
    if (!r || (metrics_only && !r->for_metrics))
        evhttp_send_error(req, HTTP_NOTFOUND, NULL);
    else if (!metrics_only && !knows_token(v, &x))
        evhttp_send_error(req, 403, "use the URL that ddprun printed");
    else
        answer(v, r, &x);
    evhttp_clear_headers(&x.query);
}

static void on_ui(struct evhttp_request *req, void *arg)
{
    handle(arg, req, false);
}

static void on_metrics(struct evhttp_request *req, void *arg)
{
    handle(arg, req, true);
}

/* --- life --------------------------------------------------------------------------- */

static void on_pause_end(evutil_socket_t fd, short what, void *listener)
{
    evconnlistener_enable(listener);
}

/* No descriptor is left: one is when a client leaves, or is idle for IDLE_S. */
static void on_accept_error(struct evconnlistener *listener, void *arg)
{
    evconnlistener_disable(listener);
    event_base_once(evconnlistener_get_base(listener), -1, EV_TIMEOUT, on_pause_end,
                    listener, &(struct timeval){1, 0});
}

static struct evhttp *listen_on(struct view *v, int fd,
                                void (*cb)(struct evhttp_request *req, void *arg),
                                struct ddp_err *err)
{
    struct evhttp *http = evhttp_new(v->base);
    evhttp_set_allowed_methods(http, EVHTTP_REQ_GET | EVHTTP_REQ_POST);
    evhttp_set_max_headers_size(http, HEAD_MAX);
    evhttp_set_max_body_size(http, BODY_MAX);
    evhttp_set_timeout(http, IDLE_S);
    evhttp_set_gencb(http, cb, v);
    evutil_make_socket_nonblocking(fd);
    struct evhttp_bound_socket *bound = evhttp_accept_socket_with_handle(http, fd);
    if (bound) {
        evconnlistener_set_error_cb(evhttp_bound_socket_get_listener(bound),
                                    on_accept_error);
        return http;
    }
    err_set(err, "cannot use the listening socket");
    evhttp_free(http);
    return NULL;
}

static int read_page(struct view *v, struct ddp_err *err)
{
    OWNED char *path = installed_file(INSTALLED_PROGRAM, "page.html", R_OK);
    if (!path)
        return err_set(err, "page.html is missing in this installation");
    v->page = text_file_read("page file", path, err);
    return v->page ? 0 : -1;
}

int http_open(struct view *v, struct ddp_err *err)
{
    bool ui = is_true(v->config, "ui");
    bool metrics = is_true(v->config, "metrics");
    if (ui && (read_page(v, err) < 0 || !(v->ui = listen_on(v, VIEW_UI_FD, on_ui, err))))
        return -1;
    if (metrics && !(v->metrics = listen_on(v, VIEW_METRICS_FD, on_metrics, err)))
        return -1;
    return 0;
}

void http_close(struct view *v)
{
    if (v->ui)
        evhttp_free(v->ui);
    if (v->metrics)
        evhttp_free(v->metrics);
}
