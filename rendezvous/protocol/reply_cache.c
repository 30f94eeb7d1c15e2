/* rendezvous/protocol/reply_cache.c - see reply_cache.h
 *
 * A reply is valid for the version of the space that it was built from; versions are
 * never reused. The reply is stored when a second client sends the same list, so a list
 * that is sent once costs one hash of it.
 */
#include "rendezvous/protocol/reply_cache.h"

#include "rendezvous/store/hash.h"

#include <stdlib.h>

enum {
    MIN_KEYS = 32,        /* shorter lists are not cached */
    MAX_BYTES = 64 << 20, /* longer replies are not cached */
};

struct kept_reply {
    uint64_t version, hash;
    struct blob *list;  /* owned: the keys requested */
    struct blob *reply; /* owned; NULL: only version and hash are known yet */
};

struct reply_cache {
    struct kept_reply multi, keys;
};

static struct reply_cache *reply_cache_get(struct reply_cache **cache)
{
    if (!*cache)
        *cache = calloc(1, sizeof **cache);
    return *cache;
}

static void kept_clear(struct kept_reply *k)
{
    blob_unref(k->list);
    blob_unref(k->reply);
    *k = (struct kept_reply){0};
}

static void put_value(struct bytes value, uint8_t **at)
{
    uint64_t size = value.size;
    memcpy(*at, &size, sizeof size);
    if (size > 0)
        memcpy(*at + sizeof size, value.data, value.size);
    *at += sizeof size + value.size;
}

static const struct view missing = {{"", 0}, NULL};

/* Two passes: first the size, then the bytes. NULL: too long, or out of memory. */
static struct blob *multi_reply(const struct space *s, struct packed keys)
{
    const uint8_t *in = keys.data;
    size_t size = 0;
    struct view v;
    for (size_t i = 0; i < keys.count; i++) {
        bool there = space_get(s, packed_next(&in), &v);
        size += sizeof(uint64_t) + (there ? v.bytes.size : 0);
        if (size > MAX_BYTES)
            return NULL;
    }
    struct blob *reply = blob_create(size);
    if (!reply)
        return NULL;
    uint8_t *at = reply->data;
    in = keys.data;
    for (size_t i = 0; i < keys.count; i++)
        put_value(space_get(s, packed_next(&in), &v) ? v.bytes : missing.bytes, &at);
    return reply;
}

static void multi_plain(const struct space *s, struct packed keys, struct out *out)
{
    const uint8_t *at = keys.data;
    for (size_t i = 0; i < keys.count; i++) {
        struct view v = missing;
        space_get(s, packed_next(&at), &v);
        out_value(out, &v);
    }
}

static bool kept_is_for(const struct kept_reply *k, struct packed keys)
{
    return k->reply && k->list->size == keys.size &&
           memcmp(k->list->data, keys.data, keys.size) == 0;
}

static void kept_make(struct kept_reply *k, const struct space *s, struct packed keys)
{
    k->list = blob_create(keys.size);
    k->reply = k->list ? multi_reply(s, keys) : NULL;
    if (k->reply)
        memcpy(k->list->data, keys.data, keys.size);
}

void reply_cache_multi_get(struct reply_cache **cache, struct space *s,
                           struct packed keys, struct out *out)
{
    struct reply_cache *c = keys.count >= MIN_KEYS ? reply_cache_get(cache) : NULL;
    if (!c) {
        multi_plain(s, keys, out);
        return;
    }
    static const struct hash_seed seed = {0x5bd1e995, 0x2545f4914f6cdd1d};
    struct kept_reply *k = &c->multi;
    uint64_t hash = hash_bytes(seed, keys.data, keys.size);
    uint64_t version = space_version(s);
    if (k->version != version || k->hash != hash) {
        kept_clear(k);
        k->version = version;
        k->hash = hash;
    } else if (!k->list) {
        kept_make(k, s, keys);
    }
    if (kept_is_for(k, keys))
        out_blob(out, k->reply);
    else
        multi_plain(s, keys, out);
}

static void add_size(struct bytes key, void *arg)
{
    *(size_t *)arg += sizeof(uint64_t) + key.size;
}

static void add_key(struct bytes key, void *arg)
{
    put_value(key, arg);
}

void reply_cache_list_keys(struct reply_cache **cache, struct space *s, struct out *out)
{
    struct reply_cache *c = reply_cache_get(cache);
    if (!c) {
        out->broken = true;
        return;
    }
    struct kept_reply *k = &c->keys;
    if (!k->reply || k->version != space_version(s)) {
        size_t size = sizeof(uint64_t);
        uint64_t count = space_count(s);
        kept_clear(k);
        space_each(s, add_size, &size);
        k->version = space_version(s);
        k->reply = blob_create(size);
        if (!k->reply) {
            out->broken = true;
            return;
        }
        uint8_t *at = k->reply->data;
        memcpy(at, &count, sizeof count);
        at += sizeof count;
        space_each(s, add_key, &at);
    }
    out_blob(out, k->reply);
}

void reply_cache_destroy(struct reply_cache *c)
{
    if (!c)
        return;
    kept_clear(&c->multi);
    kept_clear(&c->keys);
    free(c);
}
