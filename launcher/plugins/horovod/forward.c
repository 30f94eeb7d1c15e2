/* launcher/plugins/horovod/forward.c - see forward.h
 *
 * There is no flow control over the links: requests and answers are small. A connection
 * that carries more than the largest value of the server, or whose process does not read
 * its answers, is closed.
 */
#define LOG_SUBSYS "store"
#include "launcher/plugins/horovod/forward.h"

#include "common/log.h"
#include "common/mem.h"

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <stdlib.h>
#include <uthash.h>

/* bytes, each way; s: for the last bytes after the other side has closed */
enum { TOTAL_MAX = 16 << 20, UNREAD_MAX = 16 << 20, FLUSH_S = 10 };

struct forwarded {
    struct forward *owner; /* borrowed */
    uint64_t key;
    struct bufferevent *bev; /* owned */
    size_t total;            /* bytes received on it */
    bool closing;            /* the other side has closed it */
    UT_hash_handle hh;
};

struct forward {
    struct loop *loop;       /* borrowed */
    struct forwarded *conns; /* owned, by node and number */
    void (*sent)(unsigned node, const struct msg_forward *m, void *arg);
    void *arg;
};

static uint64_t key_of(unsigned node, uint32_t id)
{
    return (uint64_t)node << 32 | id;
}

static void end(struct forwarded *c)
{
    HASH_DEL(c->owner->conns, c);
    bufferevent_free(c->bev);
    free(c);
}

static void pass_on(struct forwarded *c, unsigned what, const void *data, size_t n)
{
    const struct forward *f = c->owner;
    f->sent((unsigned)(c->key >> 32),
            &(struct msg_forward){(uint32_t)c->key, what, data, (uint32_t)n}, f->arg);
}

static void close_both(struct forwarded *c)
{
    if (!c->closing)
        pass_on(c, FORWARD_CLOSE, NULL, 0);
    end(c);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    struct forwarded *c = arg;
    struct evbuffer *in = bufferevent_get_input(bev);
    size_t n;
    while ((n = evbuffer_get_contiguous_space(in)) > 0) {
        n = n < PIECE_MAX ? n : PIECE_MAX;
        pass_on(c, FORWARD_DATA, evbuffer_pullup(in, (ssize_t)n), n);
        evbuffer_drain(in, n);
        c->total += n;
    }
    if (c->total > TOTAL_MAX) {
        log_warn("a connection to Horovod's key-value server is closed: it carries more "
                 "than %d MiB",
                 TOTAL_MAX >> 20);
        close_both(c);
    }
}

static void on_event(struct bufferevent *bev, short what, void *arg)
{
    close_both(arg);
}

/* Everything that the other side had sent is written. */
static void on_written(struct bufferevent *bev, void *arg)
{
    struct forwarded *c = arg;
    if (c->closing)
        end(c);
}

void forward_add(struct forward *f, unsigned node, uint32_t id, int fd)
{
    struct forwarded *c = xcalloc(1, sizeof *c);
    *c = (struct forwarded){.owner = f, .key = key_of(node, id)};
    c->bev = bufferevent_socket_new(loop_base(f->loop), fd, BEV_OPT_CLOSE_ON_FREE);
    if (!c->bev)
        abort(); /* out of memory, as in mem.h */
    HASH_ADD(hh, f->conns, key, sizeof c->key, c);
    bufferevent_setcb(c->bev, on_read, on_written, on_event, c);
    bufferevent_enable(c->bev, EV_READ | EV_WRITE);
}

void forward_receive(struct forward *f, unsigned node, const struct msg_forward *m)
{
    uint64_t key = key_of(node, m->id);
    struct forwarded *c;
    HASH_FIND(hh, f->conns, &key, sizeof key, c);
    if (!c || c->closing)
        return;
    struct evbuffer *unread = bufferevent_get_output(c->bev);
    if (m->what == FORWARD_DATA) {
        bufferevent_write(c->bev, m->data, m->ndata);
        if (evbuffer_get_length(unread) > UNREAD_MAX)
            close_both(c);
        return;
    }
    c->closing = true;
    bufferevent_disable(c->bev, EV_READ);
    bufferevent_set_timeouts(c->bev, NULL, &(struct timeval){FLUSH_S, 0});
    if (evbuffer_get_length(unread) == 0)
        end(c);
}

void forward_drop(struct forward *f, unsigned node)
{
    struct forwarded *c, *next;
    HASH_ITER (hh, f->conns, c, next) {
        if (node == NODE_ALL || c->key >> 32 == node)
            end(c);
    }
}

struct forward *forward_create(struct loop *loop,
                               void (*sent)(unsigned node, const struct msg_forward *m,
                                            void *arg),
                               void *arg)
{
    struct forward *f = xcalloc(1, sizeof *f);
    *f = (struct forward){.loop = loop, .sent = sent, .arg = arg};
    return f;
}

void forward_destroy(struct forward *f)
{
    if (f)
        forward_drop(f, NODE_ALL);
    free(f);
}
