/* rendezvous/store/bytes.h - borrowed bytes, and keys packed in a row
 *
 * Keys and values hold any byte, NUL included. A packed list is what a request that names
 * many keys consists of: for each key a 64-bit little-endian length and then its bytes.
 * Such a list is kept, hashed and compared as one block, which is what makes two thousand
 * clients waiting for the same two thousand keys cheap (waiters.c).
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
    const uint8_t *data; /* borrowed; checked by whoever packed it */
    size_t size;         /* of all of it */
    size_t count;        /* of keys */
};

static inline bool bytes_equal(struct bytes a, struct bytes b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, a.size) == 0);
}

/* The string at `*at` of a checked list; moves `*at` behind it. */
static inline struct bytes packed_next(const uint8_t **at)
{
    uint64_t size;
    memcpy(&size, *at, sizeof size);
    struct bytes b = {*at + sizeof size, (size_t)size};
    *at += sizeof size + size;
    return b;
}

/* For people: printable, quoted ends cut at 60 bytes ("..." says so), "\x00" where it is
 * not text. Returns `text`. */
const char *bytes_show(struct bytes b, char *text, size_t size);

#endif
