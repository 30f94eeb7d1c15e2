/* rendezvous/server/server_impl.h - shared by server.c, conn.c, admission.c and closed.c
 *
 * The server owns connections and tickets. A closed connection moves to `dead` and is
 * freed at the end of the loop iteration, so none is freed inside its own callback.
 */
#ifndef RENDEZVOUS_SERVER_SERVER_IMPL_H
#define RENDEZVOUS_SERVER_SERVER_IMPL_H

#include "rendezvous/protocol/session.h"
#include "rendezvous/server/server.h"

#include <event2/event_struct.h>
#include <netinet/in.h>

enum {
    INPUT_ROOM = 256 << 10,  /* read at once */
    OUTPUT_MARK = 256 << 10, /* unsent output that pauses a client's requests */
    OUTPUT_MAX = 64 << 20,   /* unsolicited output that closes it */
    ASK_TIMEOUT_MS = 10000,
    TICKETS_MAX = 64 << 10, /* connections that wait to be admitted */
};

union peer { /* smaller than a sockaddr_storage */
    struct sockaddr sa;
    struct sockaddr_in in;
    struct sockaddr_in6 in6;
};

struct conn {
    struct server *server;    /* borrowed; owner */
    struct conn *prev, *next; /* in server->conns, or ->dead (next only) */
    struct conn *news_next;
    struct session session;
    struct event event;
    struct out *backlog; /* owned: replies not yet sent; or NULL */
    uint8_t *held;       /* owned: input not consumed yet */
    size_t nheld, held_room;
    int fd;
    short wanted;                   /* EV_READ, EV_WRITE */
    bool has_news, closed, leaving; /* leaving: EOF from the client, replies pending */
    union peer peer;
};

struct server_ticket {
    struct server *server;             /* borrowed; owner */
    struct server_ticket *prev, *next; /* in server->tickets, oldest first */
    int fd;                            /* -1: timed out, only the answer is pending */
    int64_t deadline_ms;
    union peer peer;
};

struct server {
    struct loop *loop; /* borrowed */
    struct server_options options;
    struct store *store;
    struct session_host host;
    struct listener *listener; /* owned; NULL: it does not listen */
    int port;
    int spare_fd;    /* owned: closed to accept and refuse when none is left; -1: it is */
    bool turns_away; /* it was closed: the next client is refused */
    struct event ask_timer, drain_timer;
    struct conn *conns, *dead, *news, *news_tail;
    struct server_ticket *tickets;
    uint8_t *input;          /* owned, INPUT_ROOM, shared by all connections */
    struct out *output;      /* owned: replies of the current connection */
    struct conn *feeding;    /* borrowed: the current connection */
    bool notifying, reaping; /* inside conn_news(); server_reap() is posted */
    size_t nconns, nwaiting; /* tickets with a descriptor */
    size_t max_held, held;   /* bytes of unfinished requests, all connections together */
    uint64_t accepted, refused;
    void (*drained)(size_t closed, void *arg);
    void *drained_arg;
};

/* closed.c */
void server_closed(struct server *s, const union peer *peer, const char *why);
void server_refuse(struct server *s, const union peer *peer, const char *why);
void server_conn_gone(struct server *s, struct conn *c); /* move it to `dead` */
void server_reap(void *server);                          /* free those */
/* Call the drain's `done` with the number of connections that had to be closed. */
void server_drained(struct server *s, size_t closed);

/* conn.c. conn_start() takes ownership of the descriptor. */
void conn_start(struct server *s, int fd, const union peer *peer, unsigned scope);
void conn_close(struct conn *c, const char *why); /* NULL: no notice; idempotent */
void conn_news(struct server *s);                 /* deliver the store's events */
void conn_host_init(struct session_host *h);

/* admission.c. ticket_create() takes ownership of the descriptor. ticket_evict() closes
 * the connection that has waited longest for admission; false: none waits. */
bool ticket_evict(struct server *s, const char *why);
void ticket_create(struct server *s, int fd, const union peer *peer);
void tickets_init(struct server *s);
void tickets_finish(struct server *s);

#endif
