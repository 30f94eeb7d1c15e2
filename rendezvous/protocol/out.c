/* rendezvous/protocol/out.c - see out.h */
#include "rendezvous/protocol/out.h"

#include <stdlib.h>

enum {
    FIRST_ROOM = 1024,
    COPIED = 16 << 10,       /* up to this size a value is copied, which saves a piece */
    FLAT_PLENTY = 256 << 10, /* beyond this many flat bytes no value is copied */
    KEPT_ROOM = 1 << 20,     /* a larger buffer is freed after it was sent */
};

static int out_grow(struct out *o, size_t n)
{
    size_t room = o->room ? o->room : FIRST_ROOM;
    while (room < o->size + n)
        room *= 2;
    uint8_t *data = o->broken ? NULL : realloc(o->data, room);
    if (!data) {
        o->broken = true;
        return -1;
    }
    o->data = data;
    o->room = room;
    return 0;
}

void out_bytes(struct out *o, const void *data, size_t n)
{
    if (n == 0 || (o->room - o->size < n && out_grow(o, n) < 0))
        return;
    memcpy(o->data + o->size, data, n);
    o->size += n;
}

void out_u8(struct out *o, uint8_t v)
{
    out_bytes(o, &v, sizeof v);
}

void out_u32(struct out *o, uint32_t v)
{
    out_bytes(o, &v, sizeof v);
}

void out_u64(struct out *o, uint64_t v)
{
    out_bytes(o, &v, sizeof v);
}

static void out_refer(struct out *o, struct blob *b, size_t size)
{
    if (o->nrefs == o->refs_room) {
        size_t room = o->refs_room ? o->refs_room * 2 : 8;
        struct out_ref *refs =
            o->broken ? NULL : realloc(o->refs, room * sizeof *o->refs);
        if (!refs) {
            o->broken = true;
            return;
        }
        o->refs = refs;
        o->refs_room = room;
    }
    o->refs[o->nrefs++] = (struct out_ref){o->size, blob_ref(b), size};
    o->ref_bytes += size;
}

void out_view(struct out *o, const struct view *v)
{
    size_t n = v->bytes.size;
    if (v->blob && (n > COPIED || o->size > FLAT_PLENTY))
        out_refer(o, v->blob, n);
    else
        out_bytes(o, v->bytes.data, n);
}

void out_value(struct out *o, const struct view *v)
{
    out_u64(o, v->bytes.size);
    out_view(o, v);
}

void out_blob(struct out *o, struct blob *b)
{
    if (b->size > 0)
        out_refer(o, b, b->size);
}

int out_pieces(const struct out *o, struct iovec *pieces, int max)
{
    int n = 0;
    size_t at = o->done, skip = o->ref_sent;
    for (size_t i = o->refs_done; i < o->nrefs && n < max; i++) {
        const struct out_ref *r = &o->refs[i];
        if (r->at > at) {
            pieces[n++] = (struct iovec){o->data + at, r->at - at};
            at = r->at;
        }
        if (n < max)
            pieces[n++] = (struct iovec){r->blob->data + skip, r->size - skip};
        skip = 0;
    }
    if (n < max && o->size > at)
        pieces[n++] = (struct iovec){o->data + at, o->size - at};
    return n;
}

static void out_reset(struct out *o)
{
    o->size = o->done = o->nrefs = o->refs_done = 0;
    if (o->room > KEPT_ROOM) {
        free(o->data);
        o->data = NULL;
        o->room = 0;
    }
}

void out_sent(struct out *o, size_t n)
{
    while (n > 0) {
        const struct out_ref *r = o->refs_done < o->nrefs ? &o->refs[o->refs_done] : NULL;
        size_t flat = (r ? r->at : o->size) - o->done;
        if (flat > 0) {
            size_t take = n < flat ? n : flat;
            o->done += take;
            n -= take;
            continue;
        }
        if (!r)
            break;
        size_t left = r->size - o->ref_sent, take = n < left ? n : left;
        o->ref_sent += take;
        o->ref_bytes -= take;
        n -= take;
        if (take == left) {
            blob_unref(r->blob);
            o->ref_sent = 0;
            o->refs_done++;
        }
    }
    if (out_left(o) == 0)
        out_reset(o);
}

void out_finish(struct out *o)
{
    for (size_t i = o->refs_done; i < o->nrefs; i++)
        blob_unref(o->refs[i].blob);
    free(o->refs);
    free(o->data);
    *o = (struct out){0};
}
