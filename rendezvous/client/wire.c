/* rendezvous/client/wire.c - see wire.h */
#include "rendezvous/client/wire.h"

#include <stdlib.h>
#include <string.h>

#define KEEP_MAX (64u << 10) /* a buffer larger than this is given back after use */

void wire_finish(struct wire *w)
{
    free(w->data);
    *w = (struct wire){0};
}

void wire_clear(struct wire *w)
{
    if (w->room > KEEP_MAX)
        wire_finish(w);
    w->n = 0;
    w->failed = false;
}

/* Room for `size` more bytes, or NULL. */
static unsigned char *grow(struct wire *w, size_t size)
{
    if (w->failed || size > SIZE_MAX / 2 - w->n) {
        w->failed = true;
        return NULL;
    }
    if (w->n + size > w->room) {
        size_t room = w->room ? w->room : 256;
        while (room < w->n + size)
            room *= 2;
        unsigned char *data = realloc(w->data, room);
        if (!data) {
            w->failed = true;
            return NULL;
        }
        w->data = data;
        w->room = room;
    }
    unsigned char *at = w->data + w->n;
    w->n += size;
    return at;
}

static void put_le(struct wire *w, uint64_t v, size_t size)
{
    unsigned char *at = grow(w, size);
    for (size_t i = 0; at && i < size; i++)
        at[i] = (unsigned char)(v >> (8 * i));
}

void wire_op(struct wire *w, enum wire_op op)
{
    put_le(w, (uint64_t)op, 1);
}

void wire_u32(struct wire *w, uint32_t v)
{
    put_le(w, v, 4);
}

void wire_u64(struct wire *w, uint64_t v)
{
    put_le(w, v, 8);
}

static void put_bytes(struct wire *w, const void *data, size_t size)
{
    unsigned char *at = grow(w, size);
    if (at && size > 0)
        memcpy(at, data, size);
}

void wire_str(struct wire *w, const void *data, size_t size)
{
    wire_u64(w, size);
    put_bytes(w, data, size);
}

void wire_key(struct wire *w, const char *key)
{
    size_t size = strlen(key);
    wire_u64(w, size + 1);
    put_bytes(w, "/", 1);
    put_bytes(w, key, size);
}

uint64_t wire_read_u64(const unsigned char bytes[8])
{
    uint64_t v = 0;
    for (size_t i = 0; i < 8; i++)
        v |= (uint64_t)bytes[i] << (8 * i);
    return v;
}
