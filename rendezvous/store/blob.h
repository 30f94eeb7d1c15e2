/* rendezvous/store/blob.h - counted bytes, shared between the store and slow readers
 *
 * A large value on its way to a client is not copied: the output queue holds a reference.
 * Bytes that others may refer to never change; appending writes after them.
 */
#ifndef RENDEZVOUS_STORE_BLOB_H
#define RENDEZVOUS_STORE_BLOB_H

#include <stddef.h>

struct blob {
    size_t refs;
    size_t size, room;
    unsigned char data[];
};

/* One reference, uninitialised bytes, size == room. NULL when there is no memory. */
struct blob *blob_create(size_t size);
struct blob *blob_ref(struct blob *b);
void blob_unref(struct blob *b); /* NULL is fine */

/* `*b` with `n` bytes more; may be another blob afterwards (the caller's reference moves
 * to it). Returns -1 with `*b` unchanged when there is no memory. */
int blob_append(struct blob **b, const void *data, size_t n);

#endif
