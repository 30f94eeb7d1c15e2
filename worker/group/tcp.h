/* worker/group/tcp.h - byte streams to ranks of other hosts
 *
 * A stream connects two ranks on one of two channels: collectives, whose messages come
 * in an order that both sides know, and point-to-point messages. The rank that sends
 * first opens a TCP connection, shows the receiver's token (from its card) and
 * identifies itself; answers use the same connection. No function here waits except
 * tcp_sleep(): what would block is recorded as an interest, and tcp_sleep() polls for
 * all interests.
 */
#ifndef WORKER_GROUP_TCP_H
#define WORKER_GROUP_TCP_H

#include "worker/group/call.h"
#include "worker/group/layout.h"

#include <poll.h>
#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

struct idset;

/* How many streams long data are divided over: tcp_streams.c. */
enum {
    TCP_STREAMS = 16,
    STREAMS_LOW = 3 /* the third fastest ring counts */
};

struct tcp_streams {
    unsigned n;              /* streams in use */
    bool given;              /* by the environment: nothing is measured */
    int turns;               /* rings measured with n streams */
    double low[STREAMS_LOW]; /* their lowest ns per byte, in order; 0: none */
    double fewer;            /* low[] at its end with n/2 streams; 0: not measured */
};

enum tcp_channel {
    TCP_COLL,
    TCP_MESSAGE,
    TCP_NCHANNELS,
    /* Messages may be divided over several streams: stream i of channel c is number
     * c + i * TCP_NCHANNELS. */
    TCP_ALL_CHANNELS = TCP_NCHANNELS * TCP_STREAMS
};

/* Of a message that is divided, its data go in stripes to one stream after the other. A
 * stripe is as much as a stream's buffers in the kernel hold even at first, so that all
 * streams have something to send. */
enum { TCP_STRIPE = 131072 };

/* Bytes sent or received before the other direction gets its turn: large enough to
 * amortise the system calls, small enough that the data are still in the cache of the
 * sender, or of the receiver when it reduces them. */
enum { TCP_TURN = 262144 };

/* A rank's latest calls, newest first; number 0: none. */
enum { RECENT_CALLS = 16 };
struct recent_calls {
    struct call call[RECENT_CALLS];
};

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

/* A connection from another rank, until what it is for has come. */
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

/* State kept for one other rank. */
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

/* What would have blocked. */
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
    char *turn;              /* owned: TCP_TURN bytes for the collective in progress */
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

/* Takes the listening socket out of `listeners`. `entered` counts the collectives that
 * this rank has entered. Both pointers are borrowed. */
struct tcp *tcp_create(const struct layout *layout, struct listeners *listeners,
                       const uint64_t *entered);
void tcp_destroy(struct tcp *n); /* NULL is fine */
/* In a process forked from the rank's: close the copies of descriptors that show other
 * hosts that the rank lives. Allocates and frees nothing. */
void tcp_close_copies(struct tcp *n);

/* Called at the start of each progress round: clears the interests. If data are expected
 * on a stream that is not open, connections are accepted: tcp_failure_reported(). */
bool tcp_begin(struct tcp *n, int *culprit, struct ddp_err *err);

/* Returns the bytes sent, 0 when it would block, -1 when the rank cannot be reached. */
ssize_t tcp_send(struct tcp *n, int rank, enum tcp_channel ch, const struct iovec *io,
                 int nio, struct ddp_err *err);
/* Returns the bytes received, 0 when there are none yet, -1 when the rank closed the
 * stream. */
ssize_t tcp_recv(struct tcp *n, int rank, enum tcp_channel ch, const struct iovec *io,
                 int nio, struct ddp_err *err);
/* Connect further streams, so that messages to the rank can be divided over `wanted` in
 * all. Returns how many can be used now: fewer while connections are not complete, or
 * when a quarter of the descriptors is in use: the others open as many to this rank. */
unsigned tcp_widen(struct tcp *n, int rank, enum tcp_channel ch, unsigned wanted);
/* The stream of byte `at` of data that are divided over `nstreams`, and how many of
 * `*bytes` from there go by it. */
enum tcp_channel tcp_stream_of(enum tcp_channel ch, unsigned nstreams, uint64_t at,
                               size_t *bytes);

/* Sleep until an interest is ready, a connection arrives, or `ms` have passed. */
void tcp_sleep(struct tcp *n, int ms);

/* Check that the ranks that are waited for, or watched, are alive, by polling a stream
 * to each. Opens a stream where there is none: a few per call, and at most half of the
 * process's descriptors. Returns the rank that has gone with `err` filled, or -1. Data
 * from it may have arrived meanwhile; then tcp_still_needs() is false: */
int tcp_look(struct tcp *n, struct ddp_err *err);
/* Is data expected from this rank on a stream that is not open, or data to be sent to
 * it, or is it watched? */
bool tcp_still_needs(struct tcp *n, int rank);

/* Watched ranks: their exit matters in collective `number` although no data from them
 * pass through here. tcp_watch_none() clears the list, tcp_watch() adds to it. They are
 * checked by tcp_look() and get tcp_send_calls(). */
void tcp_watch_none(struct tcp *n, uint64_t number);
void tcp_watch(struct tcp *n, int rank);
/* Tell `ranks`, which watch this rank, that it leaves without an error. */
void tcp_announce_leave(struct tcp *n, const int *ranks, int nranks);

/* Accept connections and read their hellos. True when any rank has reported, now or
 * earlier, why its group broke; the first report is kept. */
bool tcp_failure_reported(struct tcp *n, int *culprit, struct ddp_err *err);
/* Sleep until a connection arrives, or `ms` have passed. */
void tcp_await_connection(const struct tcp *n, int ms);
/* Send the cause of a failure to ranks of other hosts: all, or those that this rank has
 * a stream with. */
void tcp_report_failure(struct tcp *n, int culprit, const char *why, bool to_all);
/* Send this rank's latest calls, once each, to the ranks that are waited for or
 * watched: some per call of this function, which does not wait. A rank that has called
 * something else may wait for a third rank and would never find out from its own data;
 * earlier calls are included because NCCL and MPI accept some mismatches. */
void tcp_send_calls(struct tcp *n, const struct recent_calls *mine);
/* The next report of another rank's calls, once this rank has entered the latest of
 * them, too. False: there is none. */
bool tcp_recv_calls(struct tcp *n, int *rank, struct recent_calls *theirs);
/* Ask ranks of other hosts whether they have entered collective `number`: adds those that
 * have not, or do not answer in time. Returns for how many there was no descriptor. */
int tcp_ask(struct tcp *n, uint64_t number, struct idset *late);
/* Does the rank's listening socket, on another host, still accept connections? Not asked:
 * this process has no descriptor left. */
enum tcp_answer { TCP_REFUSES, TCP_ANSWERS, TCP_NOT_ASKED };
enum tcp_answer tcp_answers(const struct tcp *n, int rank);
void tcp_close_streams(struct tcp *n); /* close all streams */

int tcp_streams_init(struct tcp_streams *s, struct ddp_err *err);
/* The first of `team` members: a ring in which it sent so many bytes took `ns`. */
void tcp_streams_measured(struct tcp_streams *s, int team, uint64_t bytes, int64_t ns);
/* Another member: its left neighbour has used n. */
void tcp_streams_follow(struct tcp_streams *s, unsigned n);

/* ---- among tcp.c, tcp_connect.c and tcp_notify.c ---- */

/* Allocated at the first call; opens no connection. */
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
