/* launcher/link/frame.c - see frame.h
 *
 * The table below is all of the protocol that a relay needs: the allowed directions and
 * the maximum size of each type. message.c has the bodies.
 */
#include "launcher/link/frame.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/strv.h"

#include <stdlib.h>
#include <string.h>

static const struct msg_row {
    const char *name;
    unsigned ways; /* enum frame_way, or-ed */
    size_t max;    /* bytes of body */
    enum msg_merge merge;
} rows[MSG_TYPES] = {
#define MESSAGE(TYPE, name, way, max, merge) \
    [MSG_##TYPE] = {#name, way, max, MERGE_##merge},
#include "launcher/link/messages.def"
};

const char *msg_name(enum msg_type type)
{
    return (unsigned)type < MSG_TYPES && rows[type].name ? rows[type].name : "?";
}

enum msg_merge msg_merge(enum msg_type type)
{
    return rows[type].merge;
}

static void put(uint8_t *p, uint64_t v, int bytes)
{
    for (int i = bytes - 1; i >= 0; i--, v >>= 8)
        p[i] = (uint8_t)v;
}

static uint64_t get(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = 0; i < bytes; i++)
        v = v << 8 | p[i];
    return v;
}

void frame_head(uint8_t head[FRAME_HEAD], enum msg_type type, unsigned node, size_t size)
{
    put(head, size, 4);
    head[4] = (uint8_t)type;
    head[5] = 0;
    put(head + 6, node, 2);
}

long frame_parse(const uint8_t *data, size_t size, enum frame_way way, struct frame *f,
                 struct ddp_err *err)
{
    if (size < FRAME_HEAD)
        return 0;
    size_t body = (size_t)get(data, 4);
    unsigned type = data[4];
    if (type >= MSG_TYPES || !rows[type].name || data[5] != 0)
        return err_set(err, "a frame of unknown type %u", type);
    if (!(rows[type].ways & way))
        return err_set(err, "a frame '%s' from the wrong side", rows[type].name);
    if (body > rows[type].max)
        return err_set(err, "a frame '%s' of %zu bytes, over its limit of %zu",
                       rows[type].name, body, rows[type].max);
    if (size - FRAME_HEAD < body) {
        f->size = body; /* tells the reader how much to wait for */
        return 0;
    }
    *f = (struct frame){.type = (enum msg_type)type,
                        .node = (unsigned)get(data + 6, 2),
                        .body = data + FRAME_HEAD,
                        .size = body};
    return (long)(FRAME_HEAD + body);
}

static uint8_t *grow(struct pack *k, size_t n)
{
    if (k->n + n > k->room) {
        k->room = k->room ? k->room * 2 : 256;
        if (k->room < k->n + n)
            k->room = k->n + n;
        k->p = xrealloc(k->p, k->room, 1);
    }
    k->n += n;
    return k->p + k->n - n;
}

void pack_u8(struct pack *k, unsigned v)
{
    put(grow(k, 1), v, 1);
}

void pack_u16(struct pack *k, unsigned v)
{
    put(grow(k, 2), v, 2);
}

void pack_u32(struct pack *k, uint32_t v)
{
    put(grow(k, 4), v, 4);
}

void pack_u64(struct pack *k, uint64_t v)
{
    put(grow(k, 8), v, 8);
}

void pack_bytes(struct pack *k, const void *p, size_t n)
{
    if (n > 0)
        memcpy(grow(k, n), p, n);
}

#define CLIPPED " ..."

void pack_str(struct pack *k, const char *s)
{
    if (!s) {
        pack_u32(k, UINT32_MAX);
        return;
    }
    size_t n = strlen(s);
    pack_u32(k, (uint32_t)n);
    pack_bytes(k, s, n);
}

void pack_text(struct pack *k, const char *s, size_t max)
{
    size_t n = strnlen(s, max + 1);
    bool whole = n <= max;
    if (!whole) {
        n = max - strlen(CLIPPED);
        while (n > 0 &&
               ((unsigned char)s[n] & 0xc0) == 0x80) /* not within a UTF-8 character */
            n--;
    }
    pack_u32(k, (uint32_t)(whole ? n : n + strlen(CLIPPED)));
    pack_bytes(k, s, n);
    if (!whole)
        pack_bytes(k, CLIPPED, strlen(CLIPPED));
}

void pack_strs(struct pack *k, char *const *v, size_t n)
{
    pack_u32(k, (uint32_t)n);
    for (size_t i = 0; i < n; i++)
        pack_str(k, v[i]);
}

void pack_finish(struct pack *k)
{
    free(k->p);
    *k = (struct pack){0};
}

const uint8_t *unpack_bytes(struct unpack *u, size_t n)
{
    if (u->bad || u->n < n) {
        u->bad = true;
        return NULL;
    }
    const uint8_t *p = u->p;
    u->p += n;
    u->n -= n;
    return p;
}

static uint64_t take(struct unpack *u, int bytes)
{
    const uint8_t *p = unpack_bytes(u, (size_t)bytes);
    return p ? get(p, bytes) : 0;
}

unsigned unpack_u8(struct unpack *u)
{
    return (unsigned)take(u, 1);
}

unsigned unpack_u16(struct unpack *u)
{
    return (unsigned)take(u, 2);
}

uint32_t unpack_u32(struct unpack *u)
{
    return (uint32_t)take(u, 4);
}

uint64_t unpack_u64(struct unpack *u)
{
    return take(u, 8);
}

/* Refuses a text with a NUL inside: its length would be ambiguous. */
char *unpack_str(struct unpack *u)
{
    uint32_t n = unpack_u32(u);
    if (u->bad || n == UINT32_MAX)
        return NULL;
    const uint8_t *p = unpack_bytes(u, n);
    if (!p)
        return NULL;
    if (memchr(p, '\0', n)) {
        u->bad = true;
        return NULL;
    }
    return xstrndup((const char *)p, n);
}

void unpack_strs(struct unpack *u, struct strv *out)
{
    uint32_t n = unpack_u32(u);
    /* each takes at least four bytes, so an invalid count ends early */
    for (uint32_t i = 0; i < n && !u->bad; i++) {
        char *s = unpack_str(u);
        if (s)
            strv_push_nodup(out, s);
        else
            u->bad = true;
    }
}

int unpack_end(const struct unpack *u, enum msg_type type, struct ddp_err *err)
{
    if (u->bad)
        return err_set(err, "a frame '%s' that is cut short or garbled", msg_name(type));
    if (u->n > 0)
        return err_set(err, "a frame '%s' with %zu bytes too many", msg_name(type), u->n);
    return 0;
}
