/* worker/group/mailbox.h - per peer: messages to send, posted receives, unexpected
 * messages
 *
 * p2p.c transfers the data; the group owns the mailboxes.
 */
#ifndef WORKER_GROUP_MAILBOX_H
#define WORKER_GROUP_MAILBOX_H

#include "worker/group/group.h"
#include "worker/group/ring.h"

/* Precedes a message on a connection. */
struct p2p_header {
    uint32_t magic, tag;
    uint64_t bytes;
    uint32_t what;    /* as in struct ddp_request */
    uint32_t streams; /* that the data are divided over */
};

/* Read-ahead of a connection: some messages of a few KiB, or a few hundred short ones. */
enum { AHEAD = 20480 };
struct ahead {
    size_t at, end;
    char data[AHEAD];
};

struct mailbox {
    struct mailbox *next; /* all that exist */
    int rank;
    int local;                /* its number on our host, -1: on another host */
    struct ring_out ring_out; /* then */
    struct ring_in ring_in;
    struct request_queue out;        /* to be sent */
    size_t out_at;                   /* bytes of the first that are sent, */
    unsigned out_streams;            /* and how many streams it is divided over */
    struct request_queue posted;     /* to be received */
    struct request_queue unexpected; /* owned, in the order of arrival */
    struct ahead *ahead;             /* owned: read ahead; NULL: nothing */
    struct p2p_header header;        /* of the message being received */
    size_t header_got, got;          /* bytes of it */
    struct ddp_request *into; /* its destination: a receive, or one of `unexpected` */
    bool left;                /* has left: no more messages will come */
};

/* Created at first use. */
struct mailbox *mailbox_of(struct ddp_group *g, int rank);
void mailboxes_drop(struct ddp_group *g); /* requests in flight, which stay the user's */
void mailboxes_free(struct ddp_group *g);

/* Dequeue the first receive that matches; NULL: none is posted. */
struct ddp_request *mailbox_take_posted(struct ddp_group *g, struct mailbox *b, int tag,
                                        uint32_t what);
/* Is there a receive from this very rank? */
bool mailbox_needed(const struct mailbox *b);

/* Queue an unexpected message, for `bytes` behind it; NULL: no memory. */
struct ddp_request *unexpected_add(struct ddp_group *g, struct mailbox *b, int tag,
                                   uint32_t what, size_t bytes);
/* The first unexpected message that matches `r`; for any source, of the first to
 * arrive, and sets r->peer. NULL: none. */
struct ddp_request *unexpected_find(struct ddp_group *g, struct ddp_request *r);
/* Copy what has come of the message to the request, which ends or receives the rest. */
void unexpected_deliver(struct mailbox *b, struct ddp_request *m, struct ddp_request *r);

/* The request's message is complete. */
static inline void message_end(struct ddp_group *g, struct ddp_request *r)
{
    r->ended = true;
    g->npending--;
    if (r->source)
        *r->source = r->peer;
}

#endif
