/* rendezvous/store/blob.c - see blob.h */
#include "rendezvous/store/blob.h"

#include <stdlib.h>
#include <string.h>

static struct blob *blob_with_room(size_t room)
{
    struct blob *b = malloc(sizeof *b + room);
    if (b) {
        b->refs = 1;
        b->size = 0;
        b->room = room;
    }
    return b;
}

struct blob *blob_create(size_t size)
{
    struct blob *b = blob_with_room(size);
    if (b)
        b->size = size;
    return b;
}

struct blob *blob_ref(struct blob *b)
{
    b->refs++;
    return b;
}

void blob_unref(struct blob *b)
{
    if (b && --b->refs == 0)
        free(b);
}

int blob_append(struct blob **b, const void *data, size_t n)
{
    struct blob *old = *b;
    if (n > old->room - old->size) {
        struct blob *more = blob_with_room((old->size + n) * 2);
        if (!more)
            return -1;
        memcpy(more->data, old->data, old->size);
        more->size = old->size;
        blob_unref(old);
        *b = more;
    }
    memcpy((*b)->data + (*b)->size, data, n);
    (*b)->size += n;
    return 0;
}
