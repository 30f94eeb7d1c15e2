/* launcher/mpi_calls/message_counts.c - see message_counts.h
 *
 * Threads read the table without the lock, which is only to take a record.
 */
#include "launcher/mpi_calls/message_counts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

enum { TRIED = 16 }; /* places of a record */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* NULL: there is none; `unused`: the first that is not in use, or NULL. */
static struct mpi_messages_record *find(struct mpi_calls_file *f,
                                        const struct mpi_message_record *m,
                                        struct mpi_messages_record **unused)
{
    uint64_t with = (uint64_t)(uint32_t)m->peer << 32 | (uint32_t)m->tag;
    uint32_t at = mpi_calls_hash(m->comm ^ with);
    for (uint32_t i = 0; i < TRIED; i++) {
        struct mpi_messages_record *r = &f->messages[(at + i) % MPI_CALLS_SLOTS];
        uint64_t its = atomic_load_explicit(&r->comm, memory_order_acquire);
        if (its == m->comm && r->peer == m->peer && r->tag == m->tag)
            return r;
        if (unused && !*unused && its == 0)
            *unused = r;
    }
    return NULL;
}

/* With a record too few none is taken later: it would not count from the start. */
static struct mpi_messages_record *add(struct mpi_calls_file *f,
                                       const struct mpi_message_record *m)
{
    struct mpi_messages_record *unused = NULL;
    if (atomic_load_explicit(&f->full, memory_order_relaxed))
        return NULL;
    pthread_mutex_lock(&lock);
    struct mpi_messages_record *r = find(f, m, &unused);
    if (!r && unused && !f->full) {
        r = unused;
        r->peer = m->peer;
        r->tag = m->tag;
        r->sent = r->received = 0;
        atomic_store_explicit(&r->comm, m->comm, memory_order_release);
    }
    if (!r)
        f->full = true;
    pthread_mutex_unlock(&lock);
    return r;
}

void message_counts_add(struct mpi_calls_file *f, struct mpi_message_record *m)
{
    struct mpi_messages_record *r = find(f, m, NULL);
    r = r ? r : add(f, m);
    if (r)
        m->number = 1 + atomic_fetch_add_explicit(m->sends ? &r->sent : &r->received, 1,
                                                  memory_order_relaxed);
}

void message_counts_forget(struct mpi_calls_file *f, uint64_t comm)
{
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < MPI_CALLS_SLOTS; i++) {
        if (f->messages[i].comm == comm)
            f->messages[i].comm = 0;
    }
    pthread_mutex_unlock(&lock);
}
