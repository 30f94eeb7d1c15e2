/* worker/group/tcp_impl.h - internals of tcp.c, tcp_connect.c and tcp_notify.c */
#ifndef WORKER_GROUP_TCP_IMPL_H
#define WORKER_GROUP_TCP_IMPL_H

#include "worker/group/tcp.h"

#include <poll.h>

/* Purposes of a connection besides the channels. */
enum {
    HELLO_FAILURE = TCP_ALL_CHANNELS, /* the cause of a failure */
    HELLO_ASK,   /* a question: how many collectives has the receiver entered */
    HELLO_CALLS, /* the sender's latest calls */
    HELLO_LEAVE  /* the sender leaves without an error, after so many collectives */
};

struct hello {
    char magic[8];
    unsigned char token[TOKEN_BYTES];
    int32_t from, what; /* a channel, or HELLO_* */
};

struct failure_report {
    int32_t culprit;
    char why[500];
};

/* Descriptors of a stream to and from a rank; one descriptor may be both. Owned; -1:
 * none. */
struct stream {
    int out, in;
};

/* The descriptor that data from the rank come by. */
static inline int tcp_receiving_fd(const struct stream *s)
{
    return s->in >= 0 ? s->in : s->out;
}

struct accepted {
    struct accepted *next;
    int fd;
    int64_t until_ms;
    size_t got;
    struct {
        struct hello hello;
        union {
            struct failure_report report;
            struct recent_calls calls;
            uint64_t entered;
        };
    } received;
};

/* What this rank has of another one. */
struct peer {
    struct stream streams[TCP_ALL_CHANNELS];
    uint64_t reported; /* my last call that was reported to it */
    uint64_t left;     /* without an error: 1 + the collectives it had entered; else 0 */
    bool watched;      /* see tcp_watch() */
    struct recent_calls *calls; /* owned: what it has reported, until this rank has
                                 entered these calls, too; or NULL */
};

/* Is there one to or from it? NULL: no. */
static inline bool tcp_any_stream(const struct peer *p)
{
    return p && (tcp_receiving_fd(&p->streams[TCP_COLL]) >= 0 ||
                 tcp_receiving_fd(&p->streams[TCP_MESSAGE]) >= 0);
}

struct interest {
    int rank;
    enum tcp_channel ch;
    bool send;
};

/* A stream that is being connected. */
struct connecting {
    struct connecting *next;
    int rank;
    enum tcp_channel ch;
    int fd; /* -1: the last attempt failed; the next one is at again_ms */
    int64_t again_ms, pause_ms;
    bool greeted; /* the hello has been sent: the peer may have accepted it */
};

/* Connections for a report or a question to other ranks, at most one to each. */
struct contacts {
    struct contact {
        int rank, fd;
        bool asked; /* the question has been sent */
    } * v;          /* owned, as are the descriptors */
    size_t n, room;
};

struct tcp {
    const struct layout *layout;   /* borrowed from the group */
    int listener;                  /* owned */
    struct peer **peers;           /* owned, by rank; NULL until used */
    struct accepted *accepted;     /* owned */
    struct connecting *connecting; /* owned, as are the descriptors */
    struct interest *interests;    /* owned */
    struct pollfd *polled;         /* owned: those of one poll(); tcp_add_polled() */
    size_t ninterests, room, polled_room;
    char *turn;              /* owned; NULL until first used */
    uint64_t moves;          /* calls that moved data */
    const uint64_t *entered; /* borrowed from the group: collectives entered */
    bool reported;           /* why another rank's group broke is in: */
    struct failure_report report;
    uint64_t watched_in;       /* the collective that ranks are watched in */
    size_t nreports;           /* of calls, in `peers` */
    size_t nlooking;           /* streams opened by tcp_look() */
    bool expects;              /* one of the interests has no stream yet */
    struct contacts reporting; /* those to which calls are being reported */
};

/* Made when first asked for, without a connection. */
struct peer *tcp_peer(struct tcp *n, int rank);
static inline struct stream *tcp_stream(struct tcp *n, int rank, enum tcp_channel ch)
{
    return &tcp_peer(n, rank)->streams[ch];
}
/* Put a descriptor in n->polled[*np]; nothing if it is -1. */
void tcp_add_polled(struct tcp *n, size_t *np, int fd, short events);
/* Sets `err` to "rank 3 on node02 has gone (`how`)"; returns -1. */
int tcp_gone(const struct tcp *n, int rank, const char *how, struct ddp_err *err);
/* Continue connecting tcp_stream()->out, for at most `wait_ms`. 1: connected. 0:
 * not yet; temporary errors (a lost SYN, a full queue, no route) are retried at later
 * calls. -1: the rank no longer listens. */
int tcp_connect(struct tcp *n, int rank, enum tcp_channel ch, int wait_ms,
                struct ddp_err *err);
/* The stream's connection that is being made, or NULL. */
const struct connecting *tcp_connecting(struct tcp *n, int rank, enum tcp_channel ch);
void tcp_forget_connecting(struct tcp *n, int rank, enum tcp_channel ch);
void tcp_forget_all_connecting(struct tcp *n);
/* A non-blocking connect: the descriptor, or -1 with errno. */
int tcp_start_connect(const struct member *m);
int tcp_error_of(int fd); /* its pending error, or 0 */
/* Has the host at the other end not answered for a while, although it should? -1: no. */
bool tcp_is_silent(int fd);
/* Options of a connection that data go by. */
void tcp_prepare_to_send(int fd);

void tcp_forget_reports(struct tcp *n);

/* The first bytes on a connection to `rank`, and whether those that have come are any. */
struct hello tcp_hello(const struct tcp *n, int rank, int what);
bool tcp_hello_is_sound(const struct tcp *n, const struct hello *h);

#endif
