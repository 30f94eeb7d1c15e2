/* rendezvous/store/store.c - see store.h
 *
 * Scopes are few (one per attempt of a job), so a list has them.
 */
#include "rendezvous/store/store.h"

#include "common/mem.h"
#include "rendezvous/store/entry.h"

#include <assert.h>
#include <stdlib.h>
#include <sys/random.h>

struct store *store_create(size_t max_bytes)
{
    struct store *s = xcalloc(1, sizeof *s);
    s->max_bytes = max_bytes;
    /* a seed of zeros is still a hash, so a kernel without entropy is no reason to stop
     */
    if (getrandom(&s->seed, sizeof s->seed, GRND_NONBLOCK) < 0)
        s->seed = (struct hash_seed){(uintptr_t)s, (uintptr_t)&s};
    return s;
}

struct space *store_open(struct store *s, unsigned scope)
{
    struct space *sp = s->spaces;
    while (sp && (sp->scope != scope || sp->dropped))
        sp = sp->next;
    if (!sp) {
        sp = xcalloc(1, sizeof *sp);
        sp->store = s;
        sp->scope = scope;
        sp->seed = s->seed;
        sp->version = ++s->version;
        sp->next = s->spaces;
        s->spaces = sp;
    }
    sp->users++;
    return sp;
}

static void store_forget(struct space *sp)
{
    struct space **at = &sp->store->spaces;
    while (*at != sp)
        at = &(*at)->next;
    *at = sp->next;
    space_finish(sp);
}

void space_close(struct space *sp)
{
    assert(sp->users > 0);
    if (--sp->users == 0 && sp->dropped)
        store_forget(sp);
}

void store_drop(struct store *s, unsigned scope)
{
    struct space *sp = s->spaces;
    while (sp && (sp->scope != scope || sp->dropped))
        sp = sp->next;
    if (!sp)
        return;
    waiters_drop_all(sp);
    space_empty(sp);
    sp->dropped = true;
    if (sp->users == 0)
        store_forget(sp);
}

void store_destroy(struct store *s)
{
    if (!s)
        return;
    while (s->spaces) {
        assert(s->spaces->users == 0);
        store_forget(s->spaces);
    }
    free(s);
}

size_t store_keys(const struct store *s)
{
    return s->nkeys;
}

size_t store_waiters(const struct store *s)
{
    return s->nwaiters;
}

size_t store_bytes(const struct store *s)
{
    return s->bytes;
}
