/* rendezvous/store/space.h - one key space: values, queues, barriers, watchers
 *
 * A key may have a value, a queue, or both; it is *present* when it has a value or its
 * queue is not empty. A write that makes a key present wakes its waiters (waiters.h).
 * Functions that store return -1 with `err` when the store's byte limit would be exceeded
 * or memory is exhausted; nothing has changed then.
 */
#ifndef RENDEZVOUS_STORE_SPACE_H
#define RENDEZVOUS_STORE_SPACE_H

#include "include/ddprun/err.h"
#include "rendezvous/store/blob.h"
#include "rendezvous/store/bytes.h"
#include "rendezvous/store/waiters.h"

#include <stdint.h>

struct space;

/* A value in the store. Borrowed until the next write to the space; to keep it longer
 * take a reference to `blob`, or copy it where `blob` is NULL (a small value). */
struct view {
    struct bytes bytes;
    struct blob *blob;
};

int space_set(struct space *s, struct bytes key, struct bytes value, struct ddp_err *err);
/* Append to the present value; a missing key is set. */
int space_append(struct space *s, struct bytes key, struct bytes value,
                 struct ddp_err *err);
bool space_get(const struct space *s, struct bytes key, struct view *value);

/* Add `delta` to the value, a decimal number, and store the sum as decimal text; it wraps
 * around. A missing key counts as 0; leading blanks and text after the digits are
 * ignored, as strtoll does. No digits, or more than 64 bits: an error. */
int space_add(struct space *s, struct bytes key, int64_t delta, int64_t *result,
              struct ddp_err *err);

/* Stores `desired` if the value equals `expected`, or the key has none and `expected` is
 * empty. `*now` is what PyTorch's server returns: the value afterwards, or `expected` for
 * a missing key that is not set. */
int space_compare_set(struct space *s, struct bytes key, struct bytes expected,
                      struct bytes desired, struct view *now, struct ddp_err *err);

bool space_delete(struct space *s,
                  struct bytes key);       /* returns whether there was a value */
size_t space_count(const struct space *s); /* keys that have a value */
/* Every key with a value, in no order. `each` must not write. */
void space_each(const struct space *s, void (*each)(struct bytes key, void *arg),
                void *arg);
/* Unique to this state among all states of all spaces of the store: each write to a value
 * changes it. */
uint64_t space_version(const struct space *s);

/* Wakes one waiter: the oldest of those whose keys are all present. */
int space_queue_push(struct space *s, struct bytes key, struct bytes value,
                     struct ddp_err *err);
/* Length before the pop; if it is not 0, `*value` is the head and the caller's. */
size_t space_queue_pop(struct space *s, struct bytes key, struct blob **value);
size_t space_queue_len(const struct space *s, struct bytes key);

/* Adds one arrival to the key's value. `*passed`: `size` have arrived and all waiters
 * have been woken; otherwise `w` waits. */
int space_barrier(struct space *s, struct bytes key, int64_t size, struct waiter *w,
                  bool *passed, struct ddp_err *err);

/* `changed` is called after every change of one value and must not write to the space.
 * Embedded in the owner's object, which sets `owner` and `changed`; the other fields are
 * space.c's. */
enum change { CHANGE_UPDATED = 0, CHANGE_CREATED = 1, CHANGE_DELETED = 2 };
struct watch {
    const void *owner;
    struct watch *prev, *next;
    struct space *space;
    struct entry *entry; /* NULL: the space has been dropped */
    void (*changed)(struct watch *w, enum change how, struct bytes key,
                    const struct view *old, const struct view *now);
};
/* 1: this owner watches the key already, and `w` is not used. */
int space_watch(struct space *s, struct bytes key, struct watch *w, struct ddp_err *err);
void space_unwatch(struct watch *w);

/* For store.c. */
void space_empty(struct space *s);  /* every key; waiters must have ended */
void space_finish(struct space *s); /* frees all, the space too */

#endif
