/* worker/group/mailbox.h - what a rank has with another one: messages asked for, messages
 * to be sent, and messages that came before anybody asked for them
 *
 * Inside p2p.c; the group owns them all.
 */
#ifndef WORKER_GROUP_MAILBOX_H
#define WORKER_GROUP_MAILBOX_H

#include "worker/group/group.h"
#include "worker/group/ring.h"

/* What a message is; precedes it in a connection. */
struct label {
    uint32_t magic, tag;
    uint64_t bytes;
    uint32_t what, unused; /* as in struct ddp_request */
};

/* A message that came, or is coming, unasked. */
struct parcel {
    struct parcel *next;
    int tag;
    uint32_t what;
    uint64_t serial; /* in the order in which they came, from whomever */
    size_t bytes;
    bool complete;
    struct ddp_request *taker; /* who has asked for it meanwhile */
    char data[];
};

/* Bytes of a connection that came with others which were asked for: some messages of a
 * few KiB, or a few hundred short ones. */
enum { AHEAD = 20480 };
struct ahead {
    size_t at, end;
    char data[AHEAD];
};

struct mailbox {
    struct mailbox *next; /* all that exist */
    int rank;
    int local;                /* its number where it shares our memory, else -1 */
    struct ring_out ring_out; /* then */
    struct ring_in ring_in;
    struct request_queue out;         /* to be sent */
    size_t out_at;                    /* bytes of the first that are sent */
    struct request_queue asked;       /* to be received */
    struct parcel *parcels, **behind; /* owned, in the order they came; their end */
    struct ahead *ahead;              /* owned: read too much; NULL: nothing is left */
    struct label label;               /* of the message coming in */
    size_t label_got, got;            /* bytes of it */
    struct ddp_request *into;         /* where it goes: asked for, */
    struct parcel *parcel;            /* or not */
    bool left;                        /* has said goodbye: there will be no more */
};

/* Made when first asked for. */
struct mailbox *mailbox_of(struct ddp_group *g, int rank);
void mailbox_free(struct mailbox *b);

/* Take the first request for this message out of its row; NULL: nobody has asked. */
struct ddp_request *mailbox_take_asked(struct ddp_group *g, struct mailbox *b, int tag,
                                       uint32_t what);
/* Is a message of this very rank awaited? */
bool mailbox_needed(const struct mailbox *b);

/* A place for a message of `bytes`, the last of those in the mailbox; NULL: no memory. */
struct parcel *parcel_make(struct ddp_group *g, struct mailbox *b, int tag, uint32_t what,
                           size_t bytes);
/* The first that answers this request, and of those from anybody the first that came,
 * which makes `r` one of a peer; NULL: none. */
struct parcel *parcel_find(struct ddp_group *g, struct ddp_request *r);
/* The parcel is complete: its bytes are the request's now, which ends. */
void parcel_hand_over(struct mailbox *b, struct parcel *p, struct ddp_request *r);

/* The message of this request is through. */
static inline void message_end(struct ddp_group *g, struct ddp_request *r)
{
    r->ended = true;
    g->npending--;
    if (r->source)
        *r->source = r->peer;
}

#endif
