/* rendezvous/protocol/http.c - see http.h
 *
 * A held GET stays in the input: its owner feeds it again when the key is there.
 */
#include "rendezvous/protocol/http.h"

#include "common/err.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>

enum { HEAD_MAX = 8 << 10, KEY_MAX = 1024 };

enum method { HTTP_GET, HTTP_PUT, HTTP_DELETE, HTTP_METHODS };
static const char *const methods[HTTP_METHODS] = {"GET ", "PUT ", "DELETE "};

struct http_request {
    enum method method;
    struct bytes key, body;
    size_t size; /* head and body */
};

bool http_begins(uint8_t first)
{
    return first == 'G' || first == 'P' || first == 'D';
}

static void answer(struct out *out, const char *status, const struct view *body)
{
    char head[128];
    int n = snprintf(head, sizeof head, "HTTP/1.1 %s\r\nContent-Length: %zu\r\n\r\n",
                     status, body->bytes.size);
    out_bytes(out, head, (size_t)n);
    out_view(out, body);
}

static int refuse(struct out *out, const char *status, struct ddp_err *err)
{
    answer(out, status, &(struct view){0});
    err_set(err, "an HTTP request that Horovod does not send: %s", status);
    return -1;
}

/* The value of Content-Length in the head's lines; -1: none, -2: not a length. */
static long body_size(const char *line, const char *end)
{
    static const char name[] = "Content-Length:";
    for (; line < end;
         line = (const char *)memchr(line, '\n', (size_t)(end - line)) + 1) {
        char *rest;
        if (strncasecmp(line, name, sizeof name - 1) != 0)
            continue;
        line += sizeof name - 1;
        line += strspn(line, " \t");
        long size = *line >= '0' && *line <= '9' ? strtol(line, &rest, 10) : -1;
        return size >= 0 && rest[strspn(rest, " \t")] == '\r' ? size : -2;
    }
    return -1;
}

/* "METHOD /SCOPE/KEY HTTP/1.1": the key is the text between the first slash and the
 * blank. 1: read, 0: more bytes are needed. -1: Horovod sends no such request; like
 * PyTorch's store, this one then closes the connection without an answer. */
static int read_line(const char *text, size_t n, struct http_request *r)
{
    size_t len = 0;
    for (r->method = 0; r->method < HTTP_METHODS; r->method++) {
        len = strlen(methods[r->method]);
        if (strncmp(text, methods[r->method], n < len ? n : len) == 0)
            break;
    }
    if (r->method == HTTP_METHODS)
        return -1;
    const char *path = text + len, *blank = NULL;
    if (n <= len)
        return 0;
    if (path[0] != '/')
        return -1;
    for (size_t i = 0; i < n - len && !blank; i++) {
        if (path[i] == '\r' || path[i] == '\n')
            return -1;
        blank = path[i] == ' ' ? path + i : NULL;
    }
    if (!blank)
        return 0;
    r->key = (struct bytes){path + 1, (size_t)(blank - path) - 1};
    const char *slash = memchr(r->key.data, '/', r->key.size);
    return r->key.size <= KEY_MAX && slash && slash > path + 1 && slash + 1 < blank &&
                   !memchr(slash + 1, '/', (size_t)(blank - slash) - 1)
               ? 1
               : -1;
}

/* 1: a whole request, 0: more bytes are needed, -1: refused. */
static int read_request(const struct session *s, const uint8_t *in, size_t n,
                        struct http_request *r, struct out *out, struct ddp_err *err)
{
    const char *text = (const char *)in;
    int line = read_line(text, n, r);
    if (line < 0)
        return err_set(err, "no request of PyTorch or Horovod");
    const char *head = memmem(in, n < HEAD_MAX ? n : HEAD_MAX, "\r\n\r\n", 4);
    if (!head || line == 0)
        return n < HEAD_MAX ? 0 : refuse(out, "431 Request Header Fields Too Large", err);
    const char *end = head + 4; /* at least one line, and each ends in a newline */
    if (strncmp((const char *)r->key.data + r->key.size, " HTTP/1.", 8) != 0)
        return refuse(out, "400 Bad Request", err);
    long size = body_size(text, end);
    if (size == -1 && r->method == HTTP_PUT)
        return refuse(out, "411 Length Required", err);
    if (size == -2 || size > (long)s->host->limits.max_value)
        return refuse(out, "413 Content Too Large", err);
    r->body = (struct bytes){end, size > 0 ? (size_t)size : 0};
    r->size = (size_t)(end - text) + r->body.size;
    return r->size <= n;
}

/* The session waits unless `*ready`. */
static int await_key(struct session *s, struct bytes key, bool *ready,
                     struct ddp_err *err)
{
    uint8_t list[sizeof(uint64_t) + KEY_MAX];
    uint64_t size = key.size;
    memcpy(list, &size, sizeof size);
    memcpy(list + sizeof size, key.data, key.size);
    const struct packed keys = {list, sizeof size + key.size, 1};
    return waiter_start(s->space, &s->waiter, keys, ready, err);
}

static bool begins(struct bytes key, const char *with)
{
    size_t n = strlen(with);
    return key.size >= n && memcmp(key.data, with, n) == 0;
}

bool http_is_of_world(struct bytes key)
{
    return begins(key, "global/") || begins(key, "global_") || begins(key, "local_") ||
           begins(key, "cross_");
}

/* A GET of a place in the next world: the host is asked once, and its answer used once.
 */
static int execute_place(struct session *s, struct bytes key, struct out *out,
                         struct ddp_err *err)
{
    struct view value = {0};
    bool ready = false;
    if (space_get(s->space, key, &value)) {
        answer(out, "200 OK", &value);
        space_delete(s->space, key);
        s->asked = false;
        return 0;
    }
    s->expired = false;
    if (!s->asked)
        s->host->asked(s->host, key, NULL);
    s->asked = true;
    return await_key(s, key, &ready, err);
}

/* A rank can be found by the others of the next world, or has found them all. Not those
 * of a process set, "global_process_set..." */
static bool is_progress(enum method method, struct bytes key)
{
    static const char address[] = "global/", all[] = "cross_";
    const char *text = key.data;
    if (method == HTTP_PUT && begins(key, address)) /* and not its "rank_RANK" */
        return isdigit((unsigned char)text[sizeof address - 1]);
    return method == HTTP_DELETE && begins(key, all) &&
           !memchr(text + sizeof all - 1, '_', key.size - (sizeof all - 1));
}

/* Returns -1 to close the connection. A session that waits afterwards has not answered.
 */
static int execute(struct session *s, const struct http_request *r, struct out *out,
                   struct ddp_err *err)
{
    struct view value = {0};
    bool elastic = s->host->asked != NULL;
    if (elastic && r->method == HTTP_GET && begins(r->key, "rank_and_size/"))
        return execute_place(s, r->key, out, err);
    if (elastic && r->method == HTTP_PUT && begins(r->key, "worker_addresses/"))
        s->host->asked(s->host, r->key, &r->body);
    if (elastic && is_progress(r->method, r->key))
        s->host->asked(s->host, r->key, NULL);
    if (r->method == HTTP_PUT && space_set(s->space, r->key, r->body, err) < 0)
        return -1;
    if (r->method == HTTP_DELETE)
        space_delete(s->space, r->key);
    bool missing = r->method == HTTP_GET && !space_get(s->space, r->key, &value);
    bool ready = s->expired;
    if (missing && !ready && await_key(s, r->key, &ready, err) < 0)
        return -1;
    if (!missing || ready)
        answer(out, missing ? "404 Not Found" : "200 OK", &value);
    return 0;
}

ssize_t http_feed(struct session *s, const uint8_t *in, size_t n, struct out *out,
                  struct ddp_err *err)
{
    size_t used = 0;
    s->stalled = s->ended = false;
    if (s->dropped)
        return err_set(err, "the key it waited for has been dropped");
    while (used < n && !waiter_waits(&s->waiter)) {
        struct http_request r = {0};
        s->stalled = out_left(out) >= s->host->output_mark;
        int whole = s->stalled ? 0 : read_request(s, in + used, n - used, &r, out, err);
        if (whole == 0)
            break;
        if (whole < 0 || execute(s, &r, out, err) < 0)
            return -1;
        if (waiter_waits(&s->waiter))
            break;
        s->expired = false;
        s->host->requests++;
        used += r.size;
    }
    return out->broken ? err_set(err, "no memory for its replies") : (ssize_t)used;
}
