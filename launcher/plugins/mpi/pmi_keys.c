/* launcher/plugins/mpi/pmi_keys.c - tables of keys and values (pmi_impl.h) */
#include "launcher/plugins/mpi/pmi_impl.h"

#include "common/mem.h"

#include <stdlib.h>
#include <string.h>
#include <uthash.h>

struct pmi_keys {
    char *key, *value; /* owned */
    UT_hash_handle hh;
};

void pmi_keys_put(struct pmi_keys **table, const char *key, const char *value)
{
    struct pmi_keys *e;
    HASH_FIND_STR(*table, key, e);
    if (!e) {
        e = xcalloc(1, sizeof *e);
        e->key = xstrdup(key);
        HASH_ADD_KEYPTR(hh, *table, e->key, strlen(e->key), e);
    }
    free(e->value);
    e->value = xstrdup(value);
}

const char *pmi_keys_get(const struct pmi_keys *table, const char *key)
{
    struct pmi_keys *e;
    HASH_FIND_STR(table, key, e);
    return e ? e->value : NULL;
}

void pmi_keys_clear(struct pmi_keys **table)
{
    struct pmi_keys *e, *next;
    HASH_ITER (hh, *table, e, next) {
        HASH_DEL(*table, e);
        free(e->key);
        free(e->value);
        free(e);
    }
}
