/* launcher/link/link.c - see link.h
 *
 * Three buffers: `out` holds frames to be sent, `wire` the records made from them (or the
 * same bytes on a plain link), `in` what has been received and decrypted. A bufferevent
 * would add a fourth buffer and write when it decides to; one write per loop iteration is
 * wanted, so this file has its own two events.
 */
#include "launcher/link/link.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/link/message.h"

#include <errno.h>
#include <event2/buffer.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { RECORD_HEAD = 4, RECORD_MAX = 64 << 10, READ_LEAST = 512, READ_MAX = 256 << 10 };

struct link {
    struct loop *loop; /* borrowed */
    int fd;            /* owned: for reading */
    int out_fd;        /* owned: for writing; equal to fd for a socket */
    enum frame_way way;
    struct link_events events;
    void *arg;
    bool sealed;
    struct link_keys keys;
    struct event *readable, *writable; /* owned */
    struct evbuffer *out, *wire, *in;  /* owned */
    struct evbuffer *records;          /* owned: encrypted input, NULL on a plain link */
    bool flush_posted, closed, freeing;
    int64_t heard_ms;
};

static void seal_out(struct link *l)
{
    if (!l->sealed) {
        evbuffer_add_buffer(l->wire, l->out);
        return;
    }
    size_t n;
    while ((n = evbuffer_get_length(l->out)) > 0) {
        if (n > RECORD_MAX)
            n = RECORD_MAX;
        uint32_t size = (uint32_t)n + SEAL_EXTRA;
        struct evbuffer_iovec v;
        if (evbuffer_reserve_space(l->wire, RECORD_HEAD + size, &v, 1) != 1)
            abort(); /* as mem.h does when memory is gone */
        uint8_t *p = v.iov_base;
        for (int i = 0; i < RECORD_HEAD; i++)
            p[i] = (uint8_t)(size >> (24 - 8 * i));
        seal_close(&l->keys.out, p, RECORD_HEAD, evbuffer_pullup(l->out, (ssize_t)n), n,
                   p + RECORD_HEAD);
        v.iov_len = RECORD_HEAD + size;
        evbuffer_commit_space(l->wire, &v, 1);
        evbuffer_drain(l->out, n);
    }
}

static void stop(struct link *l)
{
    l->closed = true;
    event_del(l->readable);
    event_del(l->writable);
}

static void broken(struct link *l, const char *why)
{
    stop(l);
    l->events.closed(l, why, l->arg);
}

/* Decrypt all complete records; -1 when one is not authentic. */
static int open_records(struct link *l)
{
    for (;;) {
        size_t have = evbuffer_get_length(l->records);
        uint8_t head[RECORD_HEAD];
        if (evbuffer_copyout(l->records, head, RECORD_HEAD) < RECORD_HEAD)
            return 0;
        size_t size = (size_t)head[0] << 24 | (size_t)head[1] << 16 |
                      (size_t)head[2] << 8 | head[3];
        if (size <= SEAL_EXTRA || size > RECORD_MAX + SEAL_EXTRA)
            return -1;
        if (have < RECORD_HEAD + size)
            return 0;
        uint8_t *p = evbuffer_pullup(l->records, (ssize_t)(RECORD_HEAD + size));
        if (!p || seal_open(&l->keys.in, p, RECORD_HEAD, p + RECORD_HEAD, size,
                            p + RECORD_HEAD) < 0)
            return -1;
        evbuffer_add(l->in, p + RECORD_HEAD, size - SEAL_EXTRA);
        evbuffer_drain(l->records, RECORD_HEAD + size);
    }
}

/* Pass on every complete frame. The header is made contiguous first, then the frame, so
 * that a large frame is moved once and not at every read. */
static void deliver(struct link *l)
{
    while (!l->closed) {
        size_t have = evbuffer_get_length(l->in);
        if (have < FRAME_HEAD)
            return;
        struct frame f = {0};
        struct ddp_err err;
        const uint8_t *p = evbuffer_pullup(l->in, FRAME_HEAD);
        long n = frame_parse(p, FRAME_HEAD, l->way, &f, &err);
        if (n == 0 && have >= FRAME_HEAD + f.size) {
            size_t whole = FRAME_HEAD + f.size;
            p = evbuffer_pullup(l->in, (ssize_t)whole);
            n = p ? frame_parse(p, whole, l->way, &f, &err)
                  : err_set(&err, "no memory for a frame of %zu bytes", whole);
        }
        if (n < 0)
            broken(l, err.text);
        if (n <= 0)
            return;
        l->events.frame(l, &f, l->arg);
        evbuffer_drain(l->in, (size_t)n);
    }
}

/* evbuffer_read() takes 4 KiB at most, each time with a turn of the loop. */
static ssize_t read_some(struct evbuffer *to, int fd)
{
    struct evbuffer_iovec v;
    int ready = 0;
    if (ioctl(fd, FIONREAD, &ready) < 0 || ready < READ_LEAST)
        ready = READ_LEAST;
    ready = ready < READ_MAX ? ready : READ_MAX;
    if (evbuffer_reserve_space(to, ready, &v, 1) != 1)
        abort(); /* as mem.h does when memory is gone */
    ssize_t n = read(fd, v.iov_base, v.iov_len);
    if (n > 0) {
        v.iov_len = (size_t)n;
        evbuffer_commit_space(to, &v, 1);
    }
    return n;
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    struct link *l = arg;
    ssize_t n = read_some(l->sealed ? l->records : l->in, l->fd);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n < 0) {
        char why[128];
        snprintf(why, sizeof why, "%s", strerror(errno));
        broken(l, why);
        return;
    }
    if (n == 0) {
        broken(l, NULL);
        return;
    }
    l->heard_ms = now_ms();
    if (l->sealed && open_records(l) < 0)
        broken(l, "a record that was not sealed with the key of this job");
    deliver(l);
}

/* Returns -1 on a write error. */
static int write_some(struct link *l)
{
    seal_out(l);
    while (evbuffer_get_length(l->wire) > 0) {
        int n = evbuffer_write(l->wire, l->out_fd);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            break;
        if (n <= 0)
            return -1;
    }
    return 0;
}

static void on_writable(evutil_socket_t fd, short what, void *arg)
{
    struct link *l = arg;
    if (l->closed)
        return;
    if (write_some(l) < 0) {
        /* the peer's last frames are still to be read; the read side reports the end */
        evbuffer_drain(l->wire, evbuffer_get_length(l->wire));
        event_del(l->writable);
        return;
    }
    if (evbuffer_get_length(l->wire) > 0)
        event_add(l->writable, NULL);
    else
        event_del(l->writable);
}

static void on_flush(void *arg)
{
    struct link *l = arg;
    l->flush_posted = false;
    on_writable(l->out_fd, EV_WRITE, l);
}

void link_send(struct link *l, enum msg_type type, unsigned node, const void *head,
               size_t nhead, const void *data, size_t ndata)
{
    if (l->closed)
        return;
    uint8_t h[FRAME_HEAD];
    frame_head(h, type, node, nhead + ndata);
    evbuffer_add(l->out, h, sizeof h);
    evbuffer_add(l->out, head, nhead);
    evbuffer_add(l->out, data, ndata);
    if (!l->flush_posted) {
        l->flush_posted = true;
        loop_post_last(l->loop, on_flush, l);
    }
}

void link_send_pack(struct link *l, enum msg_type type, unsigned node,
                    const struct pack *k)
{
    link_send(l, type, node, k->p, k->n, NULL, 0);
}

void link_send_msg(struct link *l, unsigned node, enum msg_type type, const void *m)
{
    SCOPED(pack_finish) struct pack k = {0};
    size_t n;
    const void *rest = msg_pack_head(type, m, &k, &n);
    link_send(l, type, node, k.p, k.n, rest, n);
}

/* Bytes not yet written. */
static size_t queued(const struct link *l)
{
    return evbuffer_get_length(l->out) + evbuffer_get_length(l->wire);
}

void link_flush(struct link *l, int64_t deadline_ms)
{
    while (!l->closed && queued(l) > 0 && write_some(l) == 0) {
        int64_t left = deadline_ms - now_ms();
        struct pollfd p = {.fd = l->out_fd, .events = POLLOUT};
        if (queued(l) == 0 || left <= 0 || poll(&p, 1, (int)left) == 0)
            return;
    }
}

void link_receive(struct link *l)
{
    int ready = 0;
    while (!l->closed && ioctl(l->fd, FIONREAD, &ready) == 0 && ready > 0)
        on_readable(l->fd, EV_READ, l);
}

int64_t link_heard_ms(const struct link *l)
{
    return l->heard_ms;
}

void link_keepalive(struct link *l, int64_t timeout_ms)
{
    int s = (int)(timeout_ms / 1000);
    int idle_s = s / 3 > 1 ? s / 3 : 1, interval_s = s / 12 > 1 ? s / 12 : 1;
    sock_set_keepalive(l->fd, idle_s, interval_s, 8); /* 1/3 + 8/12 of it */
}

bool link_host_answers(const struct link *l)
{
    return !sock_unanswered(l->fd);
}

struct link *link_create(struct loop *loop, int fd, enum frame_way way,
                         const struct link_keys *keys, const struct link_events *events,
                         void *arg)
{
    struct link *l = xcalloc(1, sizeof *l);
    *l = (struct link){.loop = loop,
                       .fd = fd,
                       .out_fd = fd,
                       .way = way,
                       .events = *events,
                       .arg = arg,
                       .sealed = keys != NULL,
                       .heard_ms = now_ms()};
    if (keys) {
        l->keys = *keys;
        l->records = evbuffer_new();
    }
    l->out = evbuffer_new();
    l->wire = evbuffer_new();
    l->in = evbuffer_new();
    if (!l->out || !l->wire || !l->in)
        abort(); /* as mem.h does when memory is gone */
    l->readable = loop_watch(loop, fd, EV_READ | EV_PERSIST, on_readable, l);
    l->writable = loop_event(loop, fd, EV_WRITE | EV_PERSIST, on_writable, l);
    return l;
}

void link_write_to(struct link *l, int out)
{
    loop_free(l->writable);
    l->out_fd = out;
    l->writable = loop_event(l->loop, out, EV_WRITE | EV_PERSIST, on_writable, l);
}

static void link_free(void *arg)
{
    struct link *l = arg;
    loop_unpost(l->loop, l);
    loop_free(l->readable);
    loop_free(l->writable);
    evbuffer_free(l->out);
    evbuffer_free(l->wire);
    evbuffer_free(l->in);
    if (l->records)
        evbuffer_free(l->records);
    if (l->out_fd != l->fd)
        close(l->out_fd);
    close(l->fd);
    secret_wipe(&l->keys, sizeof l->keys);
    free(l);
}

/* Returns whether `l` is still to be freed. */
static bool link_shut(struct link *l)
{
    if (!l || l->freeing)
        return false;
    l->freeing = true;
    if (!l->closed) {
        write_some(l); /* send queued frames if the socket takes them */
        stop(l);
    }
    return true;
}

void link_close(struct link *l)
{
    if (link_shut(l))
        loop_post(l->loop, link_free, l);
}

void link_destroy(struct link *l)
{
    if (link_shut(l))
        link_free(l);
}
