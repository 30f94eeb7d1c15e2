/* rendezvous/store/entry.c - see entry.h */
#include "rendezvous/store/entry.h"

#include "common/err.h"

#include <stdlib.h>

static uint64_t key_hash(const struct space *s, struct bytes key)
{
    return hash_bytes(s->seed, key.data, key.size);
}

struct entry *space_find(const struct space *s, struct bytes key)
{
    return table_find(&s->table, key_hash(s, key), key);
}

struct entry *space_entry(struct space *s, struct bytes key, struct ddp_err *err)
{
    uint64_t hash = key_hash(s, key);
    struct entry *e = table_find(&s->table, hash, key);
    if (e || space_charge(s, 0, key.size + OVERHEAD, err) < 0)
        return e;
    e = table_add(&s->table, hash, key);
    if (!e) {
        s->store->bytes -= key.size + OVERHEAD;
        err_set(err, "no memory for a key");
    }
    return e;
}

struct entry *space_entry_more(struct space *s, struct bytes key, struct ddp_err *err)
{
    struct entry *e = space_entry(s, key, err);
    if (!e || e->more)
        return e;
    e->more = calloc(1, sizeof *e->more);
    if (!e->more) {
        space_tidy(s, e);
        err_set(err, "no memory for a key");
        return NULL;
    }
    return e;
}

void space_tidy(struct space *s, struct entry *e)
{
    struct entry_more *m = e->more;
    if (m && !m->queue && !m->links && !m->barrier && !m->watches) {
        free(m);
        e->more = NULL;
    }
    if (!e->more && !e->has_value) {
        s->store->bytes -= e->key_size + OVERHEAD;
        table_remove(&s->table, e);
    }
}

bool space_present(const struct space *s, struct bytes key)
{
    const struct entry *e = space_find(s, key);
    return e && entry_present(e);
}

int space_charge(struct space *s, size_t less, size_t more, struct ddp_err *err)
{
    struct store *st = s->store;
    if (st->max_bytes && more > less && st->bytes - less + more > st->max_bytes)
        return err_set(err, "the store is full: it may hold %zu bytes", st->max_bytes);
    st->bytes = st->bytes - less + more;
    return 0;
}
