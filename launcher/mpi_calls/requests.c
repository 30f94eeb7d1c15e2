/* launcher/mpi_calls/requests.c - see requests.h
 *
 * While a call has a request its entry is that thread's: MPI may give the handle of one
 * that has ended to another before the call returns. With the lock MPI is called to
 * convert handles only.
 */
#include "launcher/mpi_calls/requests.h"

#include <pthread.h>

enum { ENTRIES = 64 };

struct entry {
    long handle; /* 0: not in use */
    struct mpi_comm_record *r;
    uint64_t id; /* of the communicator, whose record may serve another later */
    struct mpi_call_record call;
    pthread_t owner; /* the thread whose call has it; 0: none */
    size_t at;       /* its place there */
    bool waits;      /* the call is a wait for it */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct entry entries[ENTRIES], *end = entries; /* of those that have been used */
static size_t oldest;                                 /* if all are in use */
atomic_uint requests_begun;

/* That no call has; with 0 one that is not in use. NULL: there is none. */
static struct entry *find(long handle)
{
    for (struct entry *e = entries; e < end; e++) {
        if (e->handle == handle && !e->owner)
            return e;
    }
    return NULL;
}

static struct entry *add_or_replace(void)
{
    if (end < entries + ENTRIES)
        return end++;
    for (size_t i = 0; i < ENTRIES; i++) {
        struct entry *e = &entries[oldest];
        oldest = (oldest + 1) % ENTRIES;
        if (!e->owner)
            return e;
    }
    return NULL;
}

/* Of two with one handle the first has ended unnoticed, or both have: MPI has one handle
 * for all that end at once. */
void requests_begin(struct mpi_comm_record *r, long handle)
{
    pthread_mutex_lock(&lock);
    struct entry *e = find(handle);
    e = e ? e : find(0);
    e = e ? e : add_or_replace();
    if (e) {
        requests_begun += e->handle == 0;
        *e = (struct entry){.handle = handle, .r = r, .id = r->id, .call = r->last};
    }
    pthread_mutex_unlock(&lock);
}

/* true: all are collectives. */
static bool take(const struct requests *its)
{
    bool all = true;
    for (size_t i = 0; i < its->n; i++) {
        long handle = its->handle(its->array, i);
        struct entry *e = find(handle);
        all &= e || handle == its->null;
        if (e) {
            e->owner = pthread_self();
            e->at = i;
        }
    }
    return all;
}

static void begin_wait(struct entry *e, int64_t now_ms)
{
    struct mpi_comm_record *r = e->r;
    e->waits = true;
    if (r->id != e->id || r->done < e->call.number)
        return; /* it waits for an earlier one, too */
    struct mpi_call_record *c = e->call.number == r->last.number ? &r->last : &r->waited;
    *c = e->call;
    c->at_ms = now_ms;
    r->done = e->call.number - 1;
}

void requests_enter(const struct requests *its, bool waits, int64_t now_ms)
{
    pthread_mutex_lock(&lock);
    waits &= take(its);
    for (struct entry *e = entries; waits && e < end; e++) {
        if (e->owner == pthread_self())
            begin_wait(e, now_ms);
    }
    pthread_mutex_unlock(&lock);
}

void requests_leave(const struct requests *its)
{
    pthread_mutex_lock(&lock);
    for (struct entry *e = entries; e < end; e++) {
        if (e->owner != pthread_self())
            continue;
        if (e->waits && e->r->id == e->id && e->r->done == e->call.number - 1)
            e->r->done = e->r->entered;
        e->owner = 0;
        e->waits = false;
        if (its->handle(its->array, e->at) == e->handle)
            continue;
        e->handle = 0;
        requests_begun--;
    }
    pthread_mutex_unlock(&lock);
}
