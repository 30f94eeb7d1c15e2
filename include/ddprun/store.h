/* include/ddprun/store.h - the C client of the rendezvous store
 *
 * The store is a table of keys and byte-string values, shared by the ranks of a job. It
 * implements PyTorch's TCPStore protocol (doc/tcpstore.md), so this client also works
 * with a TCPStore of PyTorch >= 2.5, and shares keys with PyTorch programs: like
 * PyTorch's own client it puts "/" in front of every key. A key has at most 8191 bytes, a
 * value 8 MiB.
 *
 * Errors: a call returns 0, or -1 with `err` filled. Each has a deadline, the
 * `timeout_ms` of ddp_store_connect() or of ddp_store_set_timeout() (0 or less: 5
 * minutes; INT64_MAX: for ever), in milliseconds; time in which this process is stopped
 * (SIGSTOP) does not count. If it passes while waiting for other ranks, the error names
 * the missing keys or ranks, and the connection stays usable: the wait is cancelled at
 * the store, which has two seconds to confirm it. If the store is lost or does not
 * answer, that call and all later ones fail with the same text: close it.
 *
 * Threads: one at a time per connection. Ownership: values that are returned are
 * malloc'ed, and the caller frees them; after an error there is nothing to free. Results
 * are set on success. All arguments are borrowed for the call. "One round trip" is true
 * of ddprun's store; PyTorch's needs two.
 */
#ifndef DDPRUN_STORE_H
#define DDPRUN_STORE_H

#include "err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ddp_store; /* one connection */

struct ddp_value {
    void *data; /* owned by the caller; not NULL after success; NUL past the end */
    size_t size;
};

/* Connect to host:port; a refused connection is tried again until the deadline. NULL host
 * means $MASTER_ADDR, port 0 means $MASTER_PORT. In a job of one rank, where ddprun
 * leaves that port to what the rank itself serves, 0 means the port of ddprun's store
 * ($DDPRUN_STORE_PORT), while MASTER_ADDR and MASTER_PORT are as ddprun has set them. The
 * caller closes the connection. */
DDP_API struct ddp_store *ddp_store_connect(const char *host, int port,
                                            int64_t timeout_ms, struct ddp_err *err);
DDP_API void ddp_store_close(struct ddp_store *s); /* NULL is fine */
DDP_API void ddp_store_set_timeout(struct ddp_store *s, int64_t timeout_ms);

/* Keys are NUL-terminated; values are any bytes. set, append, multi_set and queue_push
 * have no answer in the protocol: they return when the kernel has taken the bytes. */
DDP_API int ddp_store_set(struct ddp_store *s, const char *key, const void *data,
                          size_t size, struct ddp_err *err);
/* Waits until the key exists; wait and get travel together (one round trip). */
DDP_API int ddp_store_get(struct ddp_store *s, const char *key, struct ddp_value *value,
                          struct ddp_err *err);
/* Adds to a decimal number (a missing key counts as 0); `*result` may be NULL. If the
 * value is something else, the store closes the connection. */
DDP_API int ddp_store_add(struct ddp_store *s, const char *key, int64_t delta,
                          int64_t *result, struct ddp_err *err);
/* Appends to the value; a missing key counts as an empty one. */
DDP_API int ddp_store_append(struct ddp_store *s, const char *key, const void *data,
                             size_t size, struct ddp_err *err);
/* Stores `desired` when the value is `expected`, or when the key is missing and
 * `expected` is empty. `*now` is the value afterwards; but `expected` if the key is
 * missing and nothing was stored, as PyTorch's protocol has it. `now` may be NULL. */
DDP_API int ddp_store_compare_set(struct ddp_store *s, const char *key,
                                  const void *expected, size_t nexpected,
                                  const void *desired, size_t ndesired,
                                  struct ddp_value *now, struct ddp_err *err);
/* *all_present: 1 if all keys exist now, else 0. */
DDP_API int ddp_store_check(struct ddp_store *s, const char *const *keys, size_t nkeys,
                            int *all_present, struct ddp_err *err);
/* Waits until all keys exist. On timeout the error names those that are missing. */
DDP_API int ddp_store_wait(struct ddp_store *s, const char *const *keys, size_t nkeys,
                           struct ddp_err *err);
/* *existed, which may be NULL: 1 if the key had a value, else 0. */
DDP_API int ddp_store_delete(struct ddp_store *s, const char *key, int *existed,
                             struct ddp_err *err);
/* The number of keys that have a value. */
DDP_API int ddp_store_num_keys(struct ddp_store *s, int64_t *n, struct ddp_err *err);

/* Waits for all keys and fetches them, in one round trip. `values` has room for nkeys. */
DDP_API int ddp_store_multi_get(struct ddp_store *s, const char *const *keys,
                                size_t nkeys, struct ddp_value *values,
                                struct ddp_err *err);
/* keys[i] gets values[i]. */
DDP_API int ddp_store_multi_set(struct ddp_store *s, const char *const *keys,
                                const struct ddp_value *values, size_t nkeys,
                                struct ddp_err *err);

/* The fence: publish my value under "<name>/<rank>", wait until all `size` ranks, 0 to
 * size - 1, have published, and get every rank's value, in one round trip. values[r],
 * with room for `size`, is that of rank r. A name can be used once. On timeout the error
 * names the missing ranks. */
DDP_API int ddp_store_fence(struct ddp_store *s, const char *name, int rank, int size,
                            const void *data, size_t ndata, struct ddp_value *values,
                            struct ddp_err *err);

/* Waits until `size` callers have called it with this key, which can be used once. */
DDP_API int ddp_store_barrier(struct ddp_store *s, const char *key, int64_t size,
                              struct ddp_err *err);

/* Queues of byte strings, first in, first out; PyTorch's own stores have them since 2.8,
 * with libuv. */
DDP_API int ddp_store_queue_push(struct ddp_store *s, const char *key, const void *data,
                                 size_t size, struct ddp_err *err);
/* Waits until the queue has an element. */
DDP_API int ddp_store_queue_pop(struct ddp_store *s, const char *key,
                                struct ddp_value *value, struct ddp_err *err);
/* *n: the number of elements now. */
DDP_API int ddp_store_queue_len(struct ddp_store *s, const char *key, int64_t *n,
                                struct ddp_err *err);

DDP_API void ddp_values_free(struct ddp_value *values,
                             size_t n); /* their data, not the array */

#ifdef __cplusplus
}
#endif
#endif
