/* launcher/plugins/mpi/pmix_names.c - see pmix_related.h */
#define LOG_SUBSYS "pmix"
#include "launcher/plugins/mpi/pmix_related.h"

#include "common/duration.h"
#include "common/log.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>
#include <utlist.h>

struct pmix_lookup {
    uint32_t id;
    int64_t until_ms;
    pmix_pdata_t *data; /* owned: by key; without a value: not found yet */
    size_t n, found;
    pmix_lookup_cbfunc_t give;
    void *cbdata;
    struct pmix_lookup *prev, *next;
};

/* --- lookups ------------------------------------------------------------------------ */

static void lookup_end(struct pmix_server *s, struct pmix_lookup *l)
{
    size_t kept = 0;
    for (size_t i = 0; i < l->n; i++) { /* those that were found come first */
        if (l->data[i].value.type == PMIX_UNDEF)
            continue;
        pmix_pdata_t other = l->data[kept];
        l->data[kept++] = l->data[i];
        l->data[i] = other;
    }
    DL_DELETE(s->lookups, l);
    l->give(l->found == l->n ? PMIX_SUCCESS
            : l->found > 0   ? PMIX_ERR_PARTIAL_SUCCESS
                             : PMIX_ERR_NOT_FOUND,
            l->data, l->found, l->cbdata);
    PMIX_PDATA_FREE(l->data, l->n);
    free(l);
}

static void ask(struct pmix_server *s, const struct pmix_lookup *l, const char *key)
{
    SCOPED(pack_finish) struct pack k = {0};
    pack_u8(&k, RELATED_LOOKUP);
    pack_str(&k, s->serve.nspace);
    pack_u32(&k, s->serve.node);
    pack_u32(&k, l->id);
    pack_str(&k, key);
    pmix_send(s, MSG(related, k.p, (uint32_t)k.n));
}

void names_on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct pmix_server *s = arg;
    struct pmix_lookup *l, *next;
    int64_t soonest_ms = INT64_MAX, now = now_ms();
    DL_FOREACH_SAFE (s->lookups, l, next) {
        if (l->until_ms <= now)
            lookup_end(s, l);
        else if (l->until_ms < soonest_ms)
            soonest_ms = l->until_ms;
    }
    if (soonest_ms < INT64_MAX)
        loop_arm(s->lookup_timer, soonest_ms - now);
}

void names_lookup(struct pmix_server *s, struct pmix_call *c)
{
    struct pmix_lookup *l = xcalloc(1, sizeof *l);
    *l = (struct pmix_lookup){.id = ++s->last_id,
                              .until_ms = now_ms() + c->wait_ms,
                              .n = c->keys.n,
                              .give = c->answer.found,
                              .cbdata = c->cbdata};
    PMIX_PDATA_CREATE(l->data, l->n);
    DL_APPEND(s->lookups, l);
    for (size_t i = 0; i < l->n; i++) {
        PMIX_LOAD_KEY(l->data[i].key, c->keys.v[i]);
        ask(s, l, c->keys.v[i]); /* also this server, which gets it back */
    }
    names_on_timer(-1, 0, s);
}

/* --- names that were published here ------------------------------------------------- */

static struct pmix_name *name_find(const struct pmix_server *s, const char *key)
{
    struct pmix_name *n;
    LL_FOREACH (s->names, n) {
        if (strcmp(n->key, key) == 0)
            break;
    }
    return n;
}

static void name_drop(struct pmix_server *s, struct pmix_name *n)
{
    LL_DELETE(s->names, n);
    free(n->key);
    pack_finish(&n->value);
    free(n);
}

void names_publish(struct pmix_server *s, struct pmix_call *c)
{
    struct pmix_name *n, *next;
    LL_FOREACH_SAFE(c->names, n, next)
    {
        SCOPED(pack_finish) struct pack k = {0};
        struct pmix_name *old = name_find(s, n->key);
        if (old)
            name_drop(s, old);
        LL_PREPEND(s->names, n);
        pack_u8(&k, RELATED_NEW_NAME);
        pack_str(&k, n->key);
        pmix_send(s, MSG(related, k.p, (uint32_t)k.n));
    }
    c->names = NULL;
}

void names_unpublish(struct pmix_server *s, const struct pmix_call *c)
{
    for (size_t i = 0; i < c->keys.n; i++) {
        struct pmix_name *n = name_find(s, c->keys.v[i]);
        if (n)
            name_drop(s, n);
    }
}

/* --- messages ----------------------------------------------------------------------- */

static bool on_lookup(struct pmix_server *s, struct unpack *u)
{
    OWNED char *nspace = unpack_str(u);
    uint32_t node = unpack_u32(u), id = unpack_u32(u);
    OWNED char *key = unpack_str(u);
    if (!nspace || !key || u->bad)
        return false;
    struct pmix_name *n = name_find(s, key);
    if (!n)
        return true;
    SCOPED(pack_finish) struct pack k = {0};
    pack_u8(&k, RELATED_FOUND);
    pack_str(&k, nspace);
    pack_u32(&k, node);
    pack_u32(&k, id);
    pack_str(&k, key);
    pack_str(&k, n->by.nspace);
    pack_u32(&k, n->by.rank);
    pack_u16(&k, n->type);
    pack_bytes(&k, n->value.p, n->value.n);
    pmix_send(s, MSG(related, k.p, (uint32_t)k.n));
    if (n->once)
        name_drop(s, n);
    return true;
}

/* `value` is a string with its end, or the contents of a byte object. */
static void load_value(pmix_pdata_t *d, pmix_data_type_t type, const struct unpack *value)
{
    char *copy = value->n > 0 ? xmemdup(value->p, value->n) : NULL;
    d->value.type = type;
    if (type == PMIX_STRING)
        d->value.data.string = copy;
    else
        d->value.data.bo = (pmix_byte_object_t){.bytes = copy, .size = value->n};
}

static bool on_found(struct pmix_server *s, struct unpack *u)
{
    OWNED char *nspace = unpack_str(u);
    uint32_t node = unpack_u32(u), id = unpack_u32(u);
    OWNED char *key = unpack_str(u), *by = unpack_str(u);
    uint32_t rank = unpack_u32(u);
    pmix_data_type_t type = (pmix_data_type_t)unpack_u16(u);
    bool text = type == PMIX_STRING;
    struct pmix_lookup *l;
    if (!nspace || !key || !by || u->bad || (!text && type != PMIX_BYTE_OBJECT) ||
        (text && (u->n == 0 || u->p[u->n - 1] != '\0')))
        return false;
    if (node != s->serve.node || strcmp(nspace, s->serve.nspace) != 0)
        return true;
    DL_SEARCH_SCALAR(s->lookups, l, id, id);
    for (size_t i = 0; l && i < l->n; i++) {
        pmix_pdata_t *d = &l->data[i];
        if (strcmp(d->key, key) != 0 || d->value.type != PMIX_UNDEF)
            continue;
        PMIX_LOAD_PROCID(&d->proc, by, rank);
        load_value(d, type, u);
        l->found++;
    }
    if (l && l->found == l->n)
        lookup_end(s, l);
    return true;
}

static bool on_new_name(struct pmix_server *s, struct unpack *u)
{
    OWNED char *key = unpack_str(u);
    const struct pmix_lookup *l;
    if (!key || u->bad)
        return false;
    DL_FOREACH (s->lookups, l) {
        for (size_t i = 0; i < l->n; i++) {
            if (strcmp(l->data[i].key, key) == 0 && l->data[i].value.type == PMIX_UNDEF)
                ask(s, l, key);
        }
    }
    return true;
}

bool names_on_message(struct pmix_server *s, enum related_what what, struct unpack *u)
{
    return what == RELATED_LOOKUP     ? on_lookup(s, u)
           : what == RELATED_FOUND    ? on_found(s, u)
           : what == RELATED_NEW_NAME ? on_new_name(s, u)
                                      : false;
}
