/* rendezvous/server/admission.c - connections that wait to be admitted
 *
 * Nothing is read from them: their bytes stay in the kernel's buffer, which limits them,
 * and are processed after admission. All have the same time limit, so the list in
 * order of arrival is also in order of deadlines and one timer is enough.
 */
#include "rendezvous/server/server_impl.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/sock.h"

#include <stdlib.h>
#include <unistd.h>
#include <utlist.h>

static void tickets_watch(struct server *s)
{
    const struct server_ticket *t = s->tickets;
    while (t && t->fd < 0)
        t = t->next;
    if (!t)
        return;
    int64_t ms = t->deadline_ms - now_ms();
    loop_arm(&s->ask_timer, ms > 0 ? ms : 0);
}

/* Closes the connection; the ticket stays until it is answered, as the callee still holds
 * it. */
static void ticket_close(struct server_ticket *t, const char *why)
{
    struct server *s = t->server;
    close(t->fd);
    t->fd = -1;
    s->nwaiting--;
    server_refuse(s, &t->peer, why);
}

bool ticket_evict(struct server *s, const char *why)
{
    struct server_ticket *t = s->nwaiting > 0 ? s->tickets : NULL;
    while (t && t->fd < 0)
        t = t->next;
    if (t)
        ticket_close(t, why);
    return t != NULL;
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    struct server *s = arg;
    int64_t now = now_ms();
    for (struct server_ticket *t = s->tickets; t && t->deadline_ms <= now; t = t->next) {
        if (t->fd >= 0)
            ticket_close(t, "it was not admitted in time");
    }
    tickets_watch(s);
}

void ticket_create(struct server *s, int fd, const union peer *peer)
{
    union peer local = {0};
    socklen_t len = sizeof local;
    if (getsockname(fd, &local.sa, &len) < 0) {
        close(fd); /* the client has disconnected */
        return;
    }
    if (s->nwaiting >= TICKETS_MAX)
        ticket_evict(s, "too many others wait to be admitted");
    struct server_ticket *t = xcalloc(1, sizeof *t);
    *t = (struct server_ticket){.server = s,
                                .fd = fd,
                                .peer = *peer,
                                .deadline_ms = now_ms() + s->options.ask_timeout_ms};
    DL_APPEND(s->tickets, t);
    s->nwaiting++;
    if (!event_pending(&s->ask_timer, EV_TIMEOUT, NULL))
        tickets_watch(s);
    s->options.ask(t, &t->peer.sa, &local.sa, s->options.ask_arg);
}

void server_admit(struct server_ticket *ticket, bool admitted, unsigned scope,
                  const char *why_not)
{
    struct server *s = ticket->server;
    DL_DELETE(s->tickets, ticket);
    if (ticket->fd >= 0 && sock_was_reset(ticket->fd)) {
        admitted = false;
        why_not = "its socket has been closed already";
    }
    if (ticket->fd >= 0 && admitted) {
        s->nwaiting--;
        conn_start(s, ticket->fd, &ticket->peer, scope);
    } else if (ticket->fd >= 0) {
        ticket_close(ticket, why_not ? why_not : "not admitted");
    }
    free(ticket);
}

void tickets_init(struct server *s)
{
    event_assign(&s->ask_timer, loop_base(s->loop), -1, 0, on_deadline, s);
}

void tickets_finish(struct server *s)
{
    event_del(&s->ask_timer);
    while (s->tickets) {
        struct server_ticket *t = s->tickets;
        close_fd(&t->fd);
        DL_DELETE(s->tickets, t);
        free(t);
    }
}
