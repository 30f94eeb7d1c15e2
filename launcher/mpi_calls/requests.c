/* launcher/mpi_calls/requests.c - see requests.h
 *
 * Threads wait for different requests, so only the taking of an entry is contended. An
 * entry whose communicator's record serves another by now is left alone.
 */
#include "launcher/mpi_calls/requests.h"

#include <string.h>

enum { BEGUN_MAX = 64 };

struct begun {
    _Atomic long request; /* 0: not in use */
    struct mpi_comm_record *r;
    uint64_t id, number; /* of the communicator; of the collective in it */
    const char *at;      /* where the call in progress has it; NULL: in none */
};

static struct begun begun[BEGUN_MAX];
atomic_uint requests_begun;

static long request_at(const char *at, size_t bytes)
{
    long wide = 0;
    int narrow = 0;
    memcpy(bytes == sizeof wide ? (void *)&wide : (void *)&narrow, at, bytes);
    return bytes == sizeof wide ? wide : narrow;
}

static bool is_current(const struct begun *b)
{
    return b->r->id == b->id;
}

void requests_begin(struct mpi_comm_record *r, struct requests its)
{
    long request = request_at(its.at, its.bytes);
    for (struct begun *b = begun; b < begun + BEGUN_MAX; b++) {
        long unused = 0;
        if (b->request != 0 || !atomic_compare_exchange_strong(&b->request, &unused, -1))
            continue;
        b->r = r;
        b->id = r->id;
        b->number = r->entered;
        b->at = NULL;
        requests_begun++;
        b->request = request;
        return;
    }
}

/* The index of a handle; n: it is not there. */
static size_t index_of(long request, struct requests of)
{
    size_t i = 0;
    while (i < of.n && request_at(of.at + i * of.bytes, of.bytes) != request)
        i++;
    return i;
}

void requests_enter(struct requests of, bool all, int64_t now_ms)
{
    size_t left = atomic_load_explicit(&requests_begun, memory_order_relaxed);
    for (struct begun *b = begun; left > 0 && b < begun + BEGUN_MAX; b++) {
        long request = b->request;
        left -= request != 0;
        size_t i = request != 0 ? index_of(request, of) : of.n;
        if (i == of.n)
            continue;
        b->at = of.at + i * of.bytes;
        if (!all || !is_current(b))
            continue;
        b->r->at_ms = now_ms;
        if (b->r->done >= b->number)
            b->r->done = b->number - 1;
    }
}

void requests_leave(struct requests of, bool all)
{
    size_t left = atomic_load_explicit(&requests_begun, memory_order_relaxed);
    for (struct begun *b = begun; left > 0 && b < begun + BEGUN_MAX; b++) {
        long request = b->request;
        left -= request != 0;
        if (request == 0 || !b->at || b->at < of.at || b->at >= of.at + of.n * of.bytes)
            continue;
        if (all && is_current(b))
            b->r->done = b->r->entered;
        bool ended = request_at(b->at, of.bytes) != request;
        b->at = NULL;
        if (ended) {
            b->request = 0;
            requests_begun--;
        }
    }
}
