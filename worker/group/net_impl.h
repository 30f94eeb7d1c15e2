/* worker/group/net_impl.h - inside net.c, net_connect.c, net_look.c and
 * net_tell.c */
#ifndef WORKER_GROUP_NET_IMPL_H
#define WORKER_GROUP_NET_IMPL_H

#include "worker/group/net.h"

#include <poll.h>

/* What a connection is for, besides the channels. */
enum {
    HELLO_TELL = NET_NCHANNELS, /* why a group broke */
    HELLO_ASK,                  /* how many collectives the other has entered */
    HELLO_CALL,                 /* what I call */
    HELLO_LEAVE                 /* I leave in order, after so many collectives */
};

struct hello {
    char magic[8];
    unsigned char token[TOKEN_BYTES];
    int32_t from, what; /* a channel, or HELLO_* */
};

struct news {
    int32_t culprit;
    char why[500];
};

/* To a rank, and from it as far as that is known; one descriptor may be both. Owned, -1:
 * none. */
struct streams {
    int out[NET_NCHANNELS], in[NET_NCHANNELS];
};

/* Where a rank may be heard. */
static inline int net_ear(const struct streams *s, enum net_channel ch)
{
    return s->in[ch] >= 0 ? s->in[ch] : s->out[ch];
}

struct newcomer {
    struct newcomer *next;
    int fd;
    int64_t until_ms;
    size_t got;
    struct {
        struct hello hello;
        union {
            struct news news;
            struct said_calls calls;
            uint64_t entered;
        };
    } said;
};

/* What another rank calls, until I have come that far. */
struct heard {
    struct heard *next;
    int from;
    struct said_calls calls;
};

/* Who has left in order, and how many collectives it has entered. */
struct leaver {
    struct leaver *next;
    int rank;
    uint64_t entered;
};

/* A connection that is not ready to be told what I call. */
struct saying {
    int fd, rank;
};

struct interest {
    int rank;
    enum net_channel ch;
    bool send;
};

/* A stream that is being connected. */
struct connecting {
    struct connecting *next;
    int rank;
    enum net_channel ch;
    int fd; /* -1: the last attempt failed; the next one is at again_ms */
    int64_t again_ms, pause_ms;
    bool greeted; /* the hello has been sent */
};

struct net {
    const struct layout *layout; /* borrowed from the group */
    int listener;                /* owned */
    unsigned char token[TOKEN_BYTES];
    struct streams *streams;       /* owned, by rank */
    struct newcomer *newcomers;    /* owned */
    struct connecting *connecting; /* owned, as are the descriptors */
    struct interest *interests;    /* owned */
    struct pollfd *polled;         /* owned, as large as interests + newcomers + 1 */
    size_t ninterests, room, polled_room;
    char *turn;              /* owned; NULL until first used */
    uint64_t moves;          /* sends and receives that moved something */
    const uint64_t *entered; /* borrowed from the group: collectives entered */
    bool told;               /* why another rank's group broke: */
    struct news news;
    int *watched; /* owned: ranks, see net_watch() */
    size_t nwatched, watched_room;
    struct leaver *leavers; /* owned */
    uint64_t watched_in;    /* the collective that they are watched in */
    size_t nlooking;        /* streams that were opened to look whether somebody lives */
    bool expects;           /* one of the interests has no stream yet */
    struct heard *heard;    /* owned; one for each rank at most */
    struct saying *saying;  /* owned, as are the descriptors */
    size_t nsaying;
    uint64_t *said; /* owned, by rank: my last call that it was told of */
};

/* -1 with "rank 3 on node02 has gone (`how`)". */
int net_gone(const struct net *n, int rank, const char *how, struct ddp_err *err);
/* Go on connecting streams[rank].out[ch], for at most `wait_ms`: 1 when it is there; 0
 * when it is not yet, also because of what may pass (a lost SYN, a full queue, no route):
 * that is tried for as long as somebody asks; -1 when nobody listens there any more. */
int net_connect(struct net *n, int rank, enum net_channel ch, int wait_ms,
                struct ddp_err *err);
bool net_is_connecting(const struct net *n, int rank, enum net_channel ch);
void net_forget_connecting(struct net *n, int rank, enum net_channel ch);
void net_forget_all_connecting(struct net *n);
/* A non-blocking connect: the descriptor, or -1 with errno. */
int net_start_connect(const struct member *m);
/* Options of a connection that data go by. */
void net_prepare_to_send(int fd);

void net_keep_leaver(struct net *n, int rank, uint64_t entered);
void net_forget_watched(struct net *n);

/* What others call, and what they are told that I do. */
void net_keep_calls(struct net *n, int from, const struct said_calls *calls);
void net_forget_calls(struct net *n);

/* What to say first when connecting to `rank`. */
struct hello net_hello(const struct net *n, int rank, int what);

#endif
