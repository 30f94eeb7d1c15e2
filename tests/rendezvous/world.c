/* tests/rendezvous/world.c - see world.h */
#include "tests/rendezvous/world.h"

#include "common/mem.h"

#include <assert.h>
#include <stdlib.h>

static struct peer *peer_of(struct session *s)
{
    return (struct peer *)(void *)s; /* its first member */
}

static struct world *world_of(struct session *s)
{
    return (struct world *)(void *)s->host;
}

static void on_news(struct session *s)
{
    struct world *w = world_of(s);
    w->news |= 1u << (peer_of(s) - w->peers);
}

static struct out *out_of(struct session *s)
{
    return &peer_of(s)->out;
}

void world_init(struct world *w, enum dialect_rule rule)
{
    *w = (struct world){
        .host = {.limits = {8192, 8 << 20, 131072, 64 << 20},
                 .rule = rule,
                 .output_mark = 1 << 20,
                 .news = on_news,
                 .out = out_of},
        .store = store_create(0),
    };
}

static void peer_end(struct peer *p)
{
    session_finish(&p->session);
    space_close(p->space);
    free(p->held);
    p->held = NULL;
    p->nheld = 0;
    p->open = false;
}

static void world_feed(struct world *w, struct peer *p)
{
    /* a copy of the exact size, so that a sanitizer sees any look beyond it */
    uint8_t *in = malloc(p->nheld ? p->nheld : 1);
    if (p->nheld > 0)
        memcpy(in, p->held, p->nheld);
    if (w->feeding)
        w->feeding(true);
    ssize_t used = session_feed(&p->session, in, p->nheld, &p->out, &p->why);
    if (w->feeding)
        w->feeding(false);
    free(in);
    if (used < 0) {
        peer_end(p);
        p->closed = true;
        return;
    }
    assert((size_t)used <= p->nheld);
    p->nheld -= (size_t)used;
    if (p->held)
        memmove(p->held, p->held + used, p->nheld);
}

static void world_run(struct world *w)
{
    while (w->news) {
        int who = __builtin_ctz(w->news);
        w->news &= w->news - 1;
        if (w->peers[who].open)
            world_feed(w, &w->peers[who]);
    }
}

void world_open(struct world *w, int who, unsigned scope)
{
    struct peer *p = &w->peers[who];
    out_finish(&p->out);
    *p = (struct peer){.open = true, .space = store_open(w->store, scope)};
    session_init(&p->session, &w->host, p->space);
}

void world_close(struct world *w, int who)
{
    if (w->peers[who].open)
        peer_end(&w->peers[who]);
}

void world_send(struct world *w, int who, const void *bytes, size_t n)
{
    struct peer *p = &w->peers[who];
    if (!p->open && !p->closed)
        world_open(w, who, 0);
    if (!p->open)
        return;
    if (n > 0) {
        p->held = xrealloc(p->held, p->nheld + n, 1);
        memcpy(p->held + p->nheld, bytes, n);
        p->nheld += n;
    }
    world_feed(w, p);
    world_run(w);
}

size_t world_pending(const struct world *w, int who)
{
    return out_left(&w->peers[who].out);
}

size_t world_take(struct world *w, int who, void *bytes, size_t n)
{
    struct peer *p = &w->peers[who];
    size_t done = 0;
    while (done < n && out_left(&p->out) > 0) {
        struct iovec piece;
        out_pieces(&p->out, &piece, 1);
        size_t take = piece.iov_len < n - done ? piece.iov_len : n - done;
        memcpy((char *)bytes + done, piece.iov_base, take);
        out_sent(&p->out, take);
        done += take;
        if (p->open && p->session.stalled) {
            world_feed(w, p);
            world_run(w);
        }
    }
    return done;
}

void world_drop(struct world *w, unsigned scope)
{
    store_drop(w->store, scope);
    world_run(w);
}

void world_finish(struct world *w)
{
    for (int i = 0; i < WORLD_PEERS; i++) {
        world_close(w, i);
        out_finish(&w->peers[i].out);
    }
    session_host_finish(&w->host);
    store_destroy(w->store);
}
