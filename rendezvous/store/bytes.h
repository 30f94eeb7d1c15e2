/* rendezvous/store/bytes.h - borrowed bytes, and keys packed in a row
 *
 * Keys and values hold any byte, NUL included. A packed list is the list of keys
 * in a request: for each key a 64-bit little-endian length, then its bytes. It is kept,
 * hashed and compared as one block, so two thousand clients that wait for the same two
 * thousand keys are cheap (waiters.c).
 */
#ifndef RENDEZVOUS_STORE_BYTES_H
#define RENDEZVOUS_STORE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "lengths are used as they come off the wire");

struct bytes {
    const void *data; /* may be NULL when size is 0 */
    size_t size;
};

struct packed {
    const uint8_t *data; /* borrowed; well-formed */
    size_t size;         /* of all of it */
    size_t count;        /* of keys */
};

static inline bool bytes_equal(struct bytes a, struct bytes b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

/* The string at `*at` of a checked list; moves `*at` after it. */
static inline struct bytes packed_next(const uint8_t **at)
{
    uint64_t size;
    memcpy(&size, *at, sizeof size);
    struct bytes b = {*at + sizeof size, (size_t)size};
    *at += sizeof size + size;
    return b;
}

/* For messages: printable, cut at 60 bytes with "...", "\x00" where it is not text.
 * Returns `text`. */
const char *bytes_show(struct bytes b, char *text, size_t size);

#endif
