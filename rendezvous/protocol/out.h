/* rendezvous/protocol/out.h - output queue of one client
 *
 * Replies are gathered flat; a large value in between is a reference to the store's blob,
 * so many slow readers of one value share its bytes. After an allocation failure `broken`
 * is set, and the connection is closed.
 */
#ifndef RENDEZVOUS_PROTOCOL_OUT_H
#define RENDEZVOUS_PROTOCOL_OUT_H

#include "rendezvous/store/space.h"

#include <sys/uio.h>

struct out_ref {
    size_t at; /* precedes this flat byte */
    struct blob *blob;
    size_t size;
};

struct out {                 /* zeroed is empty */
    uint8_t *data;           /* owned */
    size_t size, room, done; /* flat bytes; `done` of them have been sent */
    struct out_ref *refs;    /* owned */
    size_t nrefs, refs_room, refs_done, ref_sent; /* ref_sent: of the first undone one */
    size_t ref_bytes;                             /* in undone references */
    bool broken;
};

/* Bytes still to be sent. */
static inline size_t out_left(const struct out *o)
{
    return o->size - o->done + o->ref_bytes;
}

void out_u8(struct out *o, uint8_t v);
void out_u32(struct out *o, uint32_t v);
void out_u64(struct out *o, uint64_t v);
void out_bytes(struct out *o, const void *data, size_t n);
/* A value; and a value after its length. */
void out_view(struct out *o, const struct view *v);
void out_value(struct out *o, const struct view *v);
/* The bytes of a whole blob. */
void out_blob(struct out *o, struct blob *b);

/* The next bytes to send, as at most `max` pieces; returns their number. */
int out_pieces(const struct out *o, struct iovec *pieces, int max);
void out_sent(struct out *o, size_t n);
void out_finish(struct out *o); /* frees; empty afterwards */

#endif
