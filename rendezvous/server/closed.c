/* rendezvous/server/closed.c - closed connections: notices, deferred free, end of a drain
 *
 * Callers up the stack may still hold a closed connection: it is freed at the end of the
 * loop iteration. A drain ends when the last connection is freed.
 */
#include "rendezvous/server/server_impl.h"

#include "common/mem.h"
#include "common/sock_addr.h"

#include <stdlib.h>
#include <utlist.h>

void server_refuse(struct server *s, const union peer *peer, const char *why)
{
    s->refused++;
    if (s->options.refused)
        s->options.refused(&peer->sa, why, s->options.notice_arg);
}

void server_closed(struct server *s, const union peer *peer, const char *why)
{
    if (!s->options.notice)
        return;
    char name[64];
    sock_name(&peer->sa, name, sizeof name);
    OWNED char *line = xasprintf("%s: closed: %s", name, why);
    s->options.notice(line, s->options.notice_arg);
}

void server_drained(struct server *s, size_t closed)
{
    void (*done)(size_t, void *) = s->drained;
    s->drained = NULL;
    event_del(&s->drain_timer);
    done(closed, s->drained_arg);
}

void server_reap(void *arg)
{
    struct server *s = arg;
    s->reaping = false;
    while (s->dead) {
        struct conn *c = s->dead;
        s->dead = c->next;
        free(c);
    }
    if (s->drained && s->nconns == 0)
        server_drained(s, 0);
}

void server_conn_gone(struct server *s, struct conn *c)
{
    DL_DELETE(s->conns, c);
    s->nconns--;
    LL_PREPEND(s->dead, c);
    if (!s->reaping) {
        s->reaping = true;
        loop_post(s->loop, server_reap, s);
    }
}
