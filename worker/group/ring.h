/* worker/group/ring.h - a single-producer, single-consumer ring of messages between two
 * ranks of a host
 *
 * A message is a sequence of pieces. A piece has a slot, one cache line with its
 * header, its sequence number (which publishes it) and up to RING_INLINE bytes; longer
 * pieces have their bytes in a contiguous area behind the slots. So a short message
 * moves one cache line: the writer knows its own position, and the reader returns slots
 * and area a quarter at a time.
 *
 * Positions count up and never wrap. A piece that would cross the end of the area
 * starts at its beginning; both sides compute this alike.
 *
 * Nothing here wakes a sleeper: see shm_wake().
 */
#ifndef WORKER_GROUP_RING_H
#define WORKER_GROUP_RING_H

#include <stdalign.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    RING_LINE = 64,
    RING_INLINE = 40,
    RING_SLOTS = 256,
    RING_ROOM = 65536,
    RING_PIECE = RING_ROOM / 8, /* bytes of a piece, at most */
    RING_FETCHED = 4,           /* lines prefetched by a waiting reader */
    RING_SHORT = 2 * RING_LINE, /* bytes of a short message */
    RING_KEPT = 4               /* a quarter is read before it is returned */
};

struct ring_slot {
    alignas(RING_LINE) _Atomic uint32_t number; /* 1 + its index; publishes the slot */
    uint32_t size;                              /* bytes of this piece */
    uint64_t bytes;                             /* of the whole message */
    uint32_t tag, what;                         /* as in struct ddp_request */
    char data[RING_INLINE];
};
_Static_assert(sizeof(struct ring_slot) == RING_LINE, "a slot is one line");

/* Shared; all zero at first. */
struct ring {
    alignas(RING_LINE) _Atomic uint64_t slots_read, room_read;
    struct ring_slot slots[RING_SLOTS];
    alignas(RING_LINE) char room[RING_ROOM];
};

/* The writer's own, and the reader's own. */
struct ring_out {
    struct ring *ring;
    uint64_t at, room_at;         /* what comes next */
    uint64_t slots_end, room_end; /* may be written up to here */
};
struct ring_in {
    struct ring *ring;
    uint64_t at, room_at;             /* what comes next */
    uint64_t slots_given, room_given; /* returned to the writer */
};

static inline struct ring_out ring_writer(struct ring *r)
{
    return (struct ring_out){.ring = r, .slots_end = RING_SLOTS, .room_end = RING_ROOM};
}

static inline struct ring_in ring_reader(struct ring *r)
{
    return (struct ring_in){.ring = r};
}

/* Prefetch a line for writing. */
static inline void ring_own(const void *line)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

/* Position of `size` bytes at or after `at`; inline data take none. */
static inline uint64_t ring_place(uint64_t at, size_t size)
{
    uint64_t left = RING_ROOM - at % RING_ROOM;
    return size > RING_INLINE && size > left ? at + left : at;
}

static inline uint64_t ring_behind(uint64_t place, size_t size)
{
    return size > RING_INLINE ? place + (size + RING_LINE - 1) / RING_LINE * RING_LINE
                              : place;
}

/* Is there room for a piece of `size` bytes? */
static inline bool ring_has_room(struct ring_out *o, size_t size)
{
    uint64_t end = ring_behind(ring_place(o->room_at, size), size);
    if (o->at < o->slots_end && end <= o->room_end)
        return true;
    o->slots_end =
        RING_SLOTS + atomic_load_explicit(&o->ring->slots_read, memory_order_acquire);
    o->room_end =
        RING_ROOM + atomic_load_explicit(&o->ring->room_read, memory_order_acquire);
    return o->at < o->slots_end && end <= o->room_end;
}

/* After a short message, prefetch the lines of the next one: stores wait for their
 * lines one by one, and with some in flight a sequence of messages is up to three times
 * as fast where CPUs share no cache. Long messages have enough in flight. */
static inline void ring_own_ahead(const struct ring_out *o, size_t size)
{
    if (size > RING_SHORT)
        return;
    ring_own(&o->ring->slots[(o->at + 2) % RING_SLOTS]);
    size_t room = size > RING_INLINE ? 2 * size : 0;
    for (size_t k = RING_LINE; k < room + RING_LINE; k += RING_LINE)
        ring_own(&o->ring->room[(o->room_at + k) % RING_ROOM]);
}

/* Write a piece; there must be room. */
static inline void ring_write(struct ring_out *o, uint32_t tag, uint32_t what,
                              uint64_t bytes, const char *data, size_t size)
{
    struct ring_slot *slot = &o->ring->slots[o->at % RING_SLOTS];
    uint64_t place = ring_place(o->room_at, size);
    if (size > 0)
        memcpy(size > RING_INLINE ? o->ring->room + place % RING_ROOM : slot->data, data,
               size);
    slot->size = (uint32_t)size;
    slot->bytes = bytes;
    slot->tag = tag;
    slot->what = what;
    atomic_store_explicit(&slot->number, (uint32_t)++o->at, memory_order_release);
    o->room_at = ring_behind(place, size);
    ring_own_ahead(o, size);
}

/* The next piece, or NULL. Its first lines of data are prefetched while waiting, in
 * parallel with the slot. */
static inline const struct ring_slot *ring_peek(const struct ring_in *i)
{
    const struct ring_slot *slot = &i->ring->slots[i->at % RING_SLOTS];
    uint32_t number = atomic_load_explicit(&slot->number, memory_order_acquire);
    if (number == (uint32_t)(i->at + 1))
        return slot;
    for (unsigned k = 0; k < RING_FETCHED; k++)
        __builtin_prefetch(i->ring->room + (i->room_at + k * RING_LINE) % RING_ROOM);
    return NULL;
}

/* Consume the piece. True when space was returned, which the writer may wait for. */
static inline bool ring_take(struct ring_in *i, const struct ring_slot *slot, char *to)
{
    size_t size = slot->size;
    uint64_t place = ring_place(i->room_at, size);
    if (size > 0)
        memcpy(to, size > RING_INLINE ? i->ring->room + place % RING_ROOM : slot->data,
               size);
    i->at++;
    i->room_at = ring_behind(place, size);
    if (i->at - i->slots_given < RING_SLOTS / RING_KEPT &&
        i->room_at - i->room_given < RING_ROOM / RING_KEPT)
        return false;
    i->slots_given = i->at;
    i->room_given = i->room_at;
    atomic_store_explicit(&i->ring->slots_read, i->at, memory_order_release);
    atomic_store_explicit(&i->ring->room_read, i->room_at, memory_order_release);
    return true;
}

#endif
