/* launcher/mpi_calls/message_counts.c - see message_counts.h
 *
 * Threads read the table without the lock, which is only to take a record.
 */
#include "launcher/mpi_calls/message_counts.h"

#include <pthread.h>
#include <stdatomic.h>

enum { TRIED = 16 }; /* places of a record */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* NULL: there is none; `free`: the first that is not in use, or NULL. */
static struct mpi_messages_record *find(struct mpi_calls_file *f, uint64_t comm, int peer,
                                        int tag, struct mpi_messages_record **free)
{
    uint64_t with = (uint64_t)(uint32_t)peer << 32 | (uint32_t)tag;
    uint32_t at = mpi_calls_hash(comm ^ with);
    for (uint32_t i = 0; i < TRIED; i++) {
        struct mpi_messages_record *m = &f->messages[(at + i) % MPI_CALLS_SLOTS];
        uint64_t its = atomic_load_explicit(&m->comm, memory_order_acquire);
        if (its == comm && m->peer == peer && m->tag == tag)
            return m;
        if (free && !*free && its == 0)
            *free = m;
    }
    return NULL;
}

static struct mpi_messages_record *add(struct mpi_calls_file *f, uint64_t comm, int peer,
                                       int tag)
{
    struct mpi_messages_record *free = NULL;
    pthread_mutex_lock(&lock);
    struct mpi_messages_record *m = find(f, comm, peer, tag, &free);
    if (!m && free) {
        m = free;
        m->peer = peer;
        m->tag = tag;
        m->sent = m->received = 0;
        atomic_store_explicit(&m->comm, comm, memory_order_release);
    }
    f->full |= !m;
    pthread_mutex_unlock(&lock);
    return m;
}

struct mpi_message_record message_counts_add(struct mpi_calls_file *f, uint64_t comm,
                                             int peer, int tag, bool sends)
{
    struct mpi_messages_record *m = find(f, comm, peer, tag, NULL);
    m = m ? m : add(f, comm, peer, tag);
    if (!m)
        return (struct mpi_message_record){.number = 0};
    uint32_t before = atomic_fetch_add_explicit(sends ? &m->sent : &m->received, 1,
                                                memory_order_relaxed);
    return (struct mpi_message_record){
        .slot = (uint32_t)(m - f->messages), .number = before + 1, .sends = sends};
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
