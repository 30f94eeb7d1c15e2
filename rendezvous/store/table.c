/* rendezvous/store/table.c - see table.h */
#include "rendezvous/store/table.h"

#include <stdlib.h>

enum { FIRST_ROOM = 64 };

struct entry *table_find(const struct table *t, uint64_t hash, struct bytes key)
{
    if (t->room == 0)
        return NULL;
    for (size_t i = hash & (t->room - 1);; i = (i + 1) & (t->room - 1)) {
        struct entry *e = t->slots[i].entry;
        if (!e)
            return NULL;
        if (t->slots[i].hash == hash && e->key_size == key.size &&
            memcmp(e->key, key.data, key.size) == 0)
            return e;
    }
}

static void slot_put(struct table *t, struct entry *e)
{
    size_t i = e->hash & (t->room - 1);
    while (t->slots[i].entry)
        i = (i + 1) & (t->room - 1);
    t->slots[i] = (struct table_slot){e->hash, e};
}

/* At most three quarters full, so that a probe always meets an empty slot soon. */
static int table_grow(struct table *t)
{
    if ((t->used + 1) * 4 <= t->room * 3)
        return 0;
    struct table wide = {.room = t->room ? t->room * 2 : FIRST_ROOM, .used = t->used};
    wide.slots = calloc(wide.room, sizeof *wide.slots);
    if (!wide.slots)
        return -1;
    for (size_t i = 0; i < t->room; i++) {
        if (t->slots[i].entry)
            slot_put(&wide, t->slots[i].entry);
    }
    free(t->slots);
    *t = wide;
    return 0;
}

struct entry *table_add(struct table *t, uint64_t hash, struct bytes key)
{
    if (table_grow(t) < 0)
        return NULL;
    struct entry *e = malloc(sizeof *e + key.size);
    if (!e)
        return NULL;
    *e = (struct entry){.hash = hash, .key_size = (uint32_t)key.size};
    if (key.size > 0)
        memcpy(e->key, key.data, key.size);
    slot_put(t, e);
    t->used++;
    return e;
}

void table_remove(struct table *t, struct entry *e)
{
    size_t mask = t->room - 1, hole = e->hash & mask;
    while (t->slots[hole].entry != e)
        hole = (hole + 1) & mask;
    for (size_t i = (hole + 1) & mask; t->slots[i].entry; i = (i + 1) & mask) {
        size_t home = t->slots[i].hash & mask;
        /* may move back unless its home lies between the hole and where it is */
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            t->slots[hole] = t->slots[i];
            hole = i;
        }
    }
    t->slots[hole] = (struct table_slot){0};
    t->used--;
    free(e);
}

void table_finish(struct table *t)
{
    free(t->slots);
    *t = (struct table){0};
}
