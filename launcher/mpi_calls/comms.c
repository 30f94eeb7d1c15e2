/* launcher/mpi_calls/comms.c - see comms.h
 *
 * The handle of a communicator is found in a table, whose entries are never unlinked: one
 * that is freed is used again for the next of its row, so that threads need no lock to
 * read it. MPI tells by an attribute that a communicator is freed.
 */
#include "launcher/mpi_calls/comms.h"

#include "common/fnv.h"
#include "launcher/mpi_calls/find.h"
#include "launcher/mpi_calls/message_counts.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_BITS = 6, ROWS = 1 << ROW_BITS };

static struct mpi_calls_file *file;
static struct comm *_Atomic rows[ROWS];
/* To add and to free entries and records. MPI is not called with it: it may hold a lock
 * of its own when it calls on_freed(). */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int do_not_copy(long comm, int keyval, void *extra, void *in, void *out, int *flag)
{
    *flag = 0;
    return 0;
}

static int on_freed(long comm, int keyval, void *value, void *extra)
{
    struct comm *c = value;
    pthread_mutex_lock(&lock);
    if (c->r) {
        message_counts_forget(file, c->r->id);
        c->r->id = 0;
    }
    free(c->world);
    *c = (struct comm){.next = c->next};
    pthread_mutex_unlock(&lock);
    return 0;
}

static struct comm *_Atomic *row_of(long handle)
{
    return &rows[mpi_calls_hash((uint64_t)handle) >> (MPI_CALLS_SLOT_BITS - ROW_BITS)];
}

static struct comm *find(long handle)
{
    struct comm *c = atomic_load_explicit(row_of(handle), memory_order_acquire);
    while (c && atomic_load_explicit(&c->handle, memory_order_acquire) != handle)
        c = c->next;
    return c;
}

/* "0-3,8" in the order of the communicator; "" if it does not fit. */
static void print_members(const struct comm *c, char *text, size_t room)
{
    size_t n = 0;
    for (int i = 0, first; i < c->size && n < room; i++) {
        first = c->world[i];
        while (i + 1 < c->size && c->world[i + 1] == c->world[i] + 1)
            i++;
        n +=
            (size_t)snprintf(text + n, room - n, c->world[i] > first ? "%s%d-%d" : "%s%d",
                             n ? "," : "", first, c->world[i]);
    }
    if (n >= room)
        text[0] = '\0';
}

static bool id_is_used(uint64_t id)
{
    for (size_t i = 0; i < MPI_CALLS_COMMS; i++) {
        if (file->comm[i].id == id)
            return true;
    }
    return false;
}

static void get_name(long handle, char name[MPI_CALLS_NAME])
{
    char all[NAME_MAX_MPI] = "";
    int n = 0;
    mpi.comm_get_name(handle, all, &n);
    snprintf(name, MPI_CALLS_NAME, "%s", all);
}

/* With the lock. `id` 0: named after its members. */
static void take_record(struct comm *c, uint64_t id, const char *name)
{
    struct mpi_comm_record *r = file->comm;
    while (r < file->comm + MPI_CALLS_COMMS && r->id != 0)
        r++;
    if (r == file->comm + MPI_CALLS_COMMS) {
        file->partly = true;
        return;
    }
    id = fnv1a(id ? id : FNV1A, c->world, (size_t)c->size * sizeof *c->world);
    while (id == 0 || id_is_used(id))
        id++;
    r->entered = r->done = 0;
    r->last.number = r->waited.number = 0;
    r->size = (uint32_t)c->size;
    r->all = c->size == mpi.size;
    memcpy(r->name, name, sizeof r->name);
    r->members[0] = '\0';
    if (!r->all)
        print_members(c, r->members, sizeof r->members);
    r->id = id;
    c->r = r;
}

/* The job's rank of each of its ranks; NULL: some are of other jobs. `like`: one with the
 * same ranks, or NULL; MPI may compare each rank with all others. */
static int *ranks_of(long handle, int size, const struct comm *like)
{
    int *ours = malloc(2 * (size_t)size * sizeof *ours), *world = ours + size;
    long group = 0;
    if (!ours)
        return NULL;
    for (int i = 0; i < size; i++)
        ours[i] = like ? like->world[i] : i;
    if (like || handle == mpi.world)
        return ours;
    mpi.comm_group(handle, &group);
    mpi.group_translate_ranks(group, size, ours, mpi.group, world);
    mpi.group_free(&group);
    memcpy(ours, world, (size_t)size * sizeof *ours);
    for (int i = 0; i < size; i++) {
        if (ours[i] < 0 || ours[i] >= mpi.size) {
            free(ours);
            return NULL;
        }
    }
    return ours;
}

/* With the lock. Takes `world` over. */
static struct comm *take_entry(long handle, int size, int *world)
{
    struct comm *_Atomic *row = row_of(handle);
    struct comm *c = *row;
    while (c && c->handle != 0)
        c = c->next;
    if (!c && (c = calloc(1, sizeof *c))) {
        c->next = *row;
        *row = c;
    }
    if (c) {
        c->size = size;
        c->world = world;
    } else {
        free(world);
    }
    return c;
}

static struct comm *add(long handle, uint64_t id, const struct comm *like, bool recorded)
{
    char name[MPI_CALLS_NAME];
    int inter = 0, size = 0;
    if (mpi.comm_test_inter(handle, &inter) != 0 || mpi.comm_size(handle, &size) != 0)
        return NULL; /* it is none */
    int *world = inter || size < 2 || !recorded ? NULL : ranks_of(handle, size, like);
    get_name(handle, name);
    pthread_mutex_lock(&lock);
    struct comm *other = find(handle); /* of another thread, by now */
    struct comm *c = other ? NULL : take_entry(handle, size, world);
    if (c && world)
        take_record(c, id, name);
    if (c)
        c->handle = handle;
    if (other)
        free(world);
    pthread_mutex_unlock(&lock);
    if (c)
        mpi.comm_set_attr(handle, mpi.keyval, c);
    return other ? other : c;
}

struct comm *comm_of(long handle)
{
    if (handle == mpi.null || handle == 0)
        return NULL;
    struct comm *c = find(handle);
    if (!c)
        c = add(handle, 0, NULL, handle == mpi.world);
    return c && c->r ? c : NULL;
}

void comm_made(long handle, struct comm *parent, bool same)
{
    uint64_t parts[] = {parent ? parent->r->id : 0, parent ? ++parent->nmade : 0};
    if (handle != mpi.null)
        add(handle, parent ? fnv1a(FNV1A, parts, sizeof parts) : 0, same ? parent : NULL,
            true);
}

void comm_named(struct comm *c)
{
    get_name(c->handle, c->r->name);
}

void comms_begin(struct mpi_calls_file *f)
{
    file = f;
    mpi.comm_size(mpi.world, &mpi.size);
    mpi.comm_group(mpi.world, &mpi.group);
    mpi.comm_create_keyval(do_not_copy, on_freed, &mpi.keyval, NULL);
}
