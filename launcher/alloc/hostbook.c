/* launcher/alloc/hostbook.c - see hostbook.h
 *
 * A hash table from the first label, and from the whole name where that is longer, in
 * lower case, to a node. It is open-addressed and holds indices only, for one cache miss
 * per name (uthash takes twice the time).
 */
#include "launcher/alloc/hostbook.h"

#include "common/err.h"
#include "common/fnv.h"
#include "common/hostlist.h"
#include "common/mem.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Limits what bracket expressions may expand to. */
#define NAMES_MAX HOSTLIST_MAX

/* An entry of the hash table; unused when `node` is FREE. */
struct slot {
    uint32_t hash;
    uint32_t node;
    bool whole;  /* the key is its whole name, not the first label */
    bool shared; /* other nodes have this first label, too */
};

#define FREE UINT32_MAX

/* Data of a node beyond its struct alloc_node. */
struct host_info {
    long line;      /* first mention */
    int bare;       /* mentions without a number of slots */
    bool has_slots; /* given explicitly */
    bool by_label;  /* has a domain, and was also named without */
    char *full;     /* owned: has no domain, but was also named with this one; NULL */
};

struct hostbook {
    struct alloc *a; /* borrowed */
    enum repeat repeat;
    struct slot *slots; /* owned; nslots is a power of two, never more than half full */
    size_t nslots, used;
    struct host_info *infos; /* owned; by node */
    size_t ninfos, room;
    long nnames; /* entered, repeats too */
};

/* Length of a name's first label; addresses have no short form. */
static size_t label_len(const char *name)
{
    size_t len = strlen(name), dot = strcspn(name, ".");
    bool address = (isxdigit((unsigned char)name[0]) || name[0] == ':') &&
                   host_is_address(name, len);
    return address ? len : dot;
}

/* FNV-1a in lower case. */
static uint32_t hash_of(const char *name, size_t len)
{
    uint64_t h = FNV1A;
    for (size_t i = 0; i < len; i++)
        h = fnv1a(h, &(unsigned char){(unsigned char)tolower((unsigned char)name[i])}, 1);
    return (uint32_t)(h ^ h >> 32);
}

/* The slot of the label of `name`, `len` bytes, or of the whole; or the unused one where
 * it belongs. */
static struct slot *slot_of(const struct hostbook *b, const char *name, size_t len,
                            bool whole, uint32_t hash)
{
    size_t i = hash & (b->nslots - 1);
    for (; b->slots[i].node != FREE; i = (i + 1) & (b->nslots - 1)) {
        const struct slot *s = &b->slots[i];
        if (s->hash != hash || s->whole != whole)
            continue;
        const char *other = b->a->nodes[s->node].name;
        size_t n = whole ? strlen(other) : label_len(other);
        if (n == len && strncasecmp(other, name, len) == 0)
            break;
    }
    return &b->slots[i];
}

static struct slot *find(const struct hostbook *b, const char *name, bool whole)
{
    size_t len = whole ? strlen(name) : label_len(name);
    return slot_of(b, name, len, whole, hash_of(name, len));
}

static void grow(struct hostbook *b)
{
    struct slot *old = b->slots;
    size_t n = b->nslots;
    b->nslots = n ? n * 2 : 64;
    b->slots = xcalloc(b->nslots, sizeof *b->slots);
    memset(b->slots, 0xff, b->nslots * sizeof *b->slots); /* FREE */
    for (size_t i = 0; i < n; i++) {
        if (old[i].node == FREE)
            continue;
        size_t at = old[i].hash & (b->nslots - 1);
        while (b->slots[at].node != FREE)
            at = (at + 1) & (b->nslots - 1);
        b->slots[at] = old[i];
    }
    free(old);
}

/* Is it more than a first label? */
static bool is_long(const char *name)
{
    return name[label_len(name)] != '\0';
}

static void enter(struct hostbook *b, size_t node, bool whole)
{
    const char *name = b->a->nodes[node].name;
    size_t len = whole ? strlen(name) : label_len(name);
    uint32_t hash = hash_of(name, len);
    struct slot *s = slot_of(b, name, len, whole, hash);
    bool there = s->node != FREE;
    b->used += !there;
    if (!there || !is_long(name)) /* of a label, a name that is no more than that */
        *s = (struct slot){hash, (uint32_t)node, whole, there};
    else
        s->shared = true;
}

/* Add node `node`, whose name is not in the table. */
static void add_node(struct hostbook *b, size_t node, long line)
{
    if (node >= b->room) {
        b->room = b->room ? b->room * 2 : 64;
        b->room = b->room > node ? b->room : node + 1;
        b->infos = xrealloc(b->infos, b->room, sizeof *b->infos);
    }
    if ((b->used + 2) * 2 > b->nslots)
        grow(b);
    b->infos[node] = (struct host_info){.line = line};
    b->ninfos = node + 1;
    enter(b, node, false);
    if (is_long(b->a->nodes[node].name))
        enter(b, node, true);
}

struct hostbook *hostbook_create(struct alloc *a, enum repeat repeat)
{
    struct hostbook *b = xcalloc(1, sizeof *b);
    b->a = a;
    b->repeat = repeat;
    for (size_t i = 0; i < a->nnodes; i++)
        add_node(b, i, 0);
    return b;
}

void hostbook_destroy(struct hostbook *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < b->ninfos; i++)
        free(b->infos[i].full);
    free(b->slots);
    free(b->infos);
    free(b);
}

/* Does `name` match no node, one (*node), or several (2)? A name matches itself, a first
 * label matches every name that begins with it, and the other way round. */
static int matches(const struct hostbook *b, const char *name, size_t *node)
{
    if (b->used == 0)
        return 0;
    const struct slot *s = find(b, name, true);
    bool exact = s->node != FREE;
    s = exact ? s : find(b, name, false);
    if (s->node == FREE)
        return 0;
    *node = s->node;
    const struct host_info *info = &b->infos[s->node];
    if (exact || !is_long(name))
        return exact || !is_long(b->a->nodes[s->node].name) ? 1 : 1 + s->shared;
    if (is_long(b->a->nodes[s->node].name)) /* of another domain */
        return info->by_label ? 2 : 0;
    return info->full && strcasecmp(info->full, name) != 0 ? 2 : 1;
}

/* Remember what the next name of this label is compared with: the result must not depend
 * on the order of the names. */
static void note_domain(struct hostbook *b, size_t node, const char *name)
{
    struct host_info *info = &b->infos[node];
    bool has_domain = is_long(b->a->nodes[node].name);
    info->by_label |= has_domain && !is_long(name);
    if (!has_domain && is_long(name) && !info->full)
        info->full = xstrdup(name);
}

static int complain_ambiguous(const char *name, const struct host_place *place,
                              const char *at, struct ddp_err *err)
{
    return host_complain(place, at, err,
                         is_long(name) ? "'%s' may be a host that is also named without "
                                         "a domain; write its domain everywhere"
                                       : "'%s' could be more than one of the hosts; "
                                         "write its domain",
                         name);
}

long hostbook_find(struct hostbook *b, const char *name, const struct host_place *place,
                   const char *at, struct ddp_err *err)
{
    size_t node;
    int n = matches(b, name, &node);
    if (n == 1)
        return (long)node;
    return n > 1 ? complain_ambiguous(name, place, at, err)
                 : host_complain(place, at, err, "'%s' is not one of the hosts", name);
}

static void give_slots(struct alloc_node *node, int slots, const char *how,
                       const struct host_place *place)
{
    char line[24] = "";
    if (place->line)
        snprintf(line, sizeof line, ":%ld", place->line);
    alloc_set_slots(node, slots, SLOTS_GIVEN, "%s%s: %s%d", place->source, line, how,
                    slots);
}

/* A repeated host: add its slots, or report the contradiction. */
static int merge_slots(struct hostbook *b, size_t i, const struct host_place *place,
                       const struct host_entry *e, struct ddp_err *err)
{
    struct alloc_node *node = &b->a->nodes[i];
    struct host_info *info = &b->infos[i];
    if ((e->slots || info->has_slots) && b->repeat == REPEAT_REFUSED)
        return host_complain(place, e->slots && e->slots_at ? e->slots_at : e->host, err,
                             "'%s' is already listed in line %ld; give its slots once",
                             node->name, info->line);
    long slots =
        (long)(info->has_slots ? node->slots : info->bare) + (e->slots ? e->slots : 1);
    if (slots > SLOTS_MAX)
        return host_complain(place, e->host, err, "more than %d slots for '%s'",
                             SLOTS_MAX, node->name);
    info->has_slots = info->has_slots || e->slots;
    info->bare += e->slots == 0;
    give_slots(node, (int)slots, "named again, adds up to ", place);
    return 0;
}

static int merge_login(struct alloc_node *node, const struct host_place *place,
                       const struct host_entry *e, struct ddp_err *err)
{
    if (e->user && node->user &&
        (strlen(node->user) != e->user_len ||
         memcmp(node->user, e->user, e->user_len) != 0))
        return host_complain(place, e->user, err, "'%s' has the login name '%s' already",
                             node->name, node->user);
    if (e->port && node->port && e->port != node->port)
        return host_complain(place, e->host, err, "'%s' has the port %d already",
                             node->name, node->port);
    if (e->max_slots && node->max_slots && e->max_slots != node->max_slots)
        return host_complain(place, e->host, err, "'%s' has max_slots=%d already",
                             node->name, node->max_slots);
    if (e->user && !node->user)
        node->user = xstrndup(e->user, e->user_len);
    node->port = e->port ? e->port : node->port;
    node->max_slots = e->max_slots ? e->max_slots : node->max_slots;
    return 0;
}

static int add_name(struct hostbook *b, const char *name, const struct host_place *place,
                    const struct host_entry *e, struct ddp_err *err)
{
    size_t i;
    if (++b->nnames > NAMES_MAX)
        return host_complain(place, e->host, err, "more than %d hosts in all", NAMES_MAX);
    int n = matches(b, name, &i);
    if (n > 1)
        return complain_ambiguous(name, place, e->host, err);
    if (n == 1) {
        TRY(merge_slots(b, i, place, e, err));
        note_domain(b, i, name);
    } else {
        struct alloc_node *node = alloc_add(b->a, name);
        i = b->a->nnodes - 1;
        add_node(b, i, place->line);
        b->infos[i].has_slots = e->slots > 0;
        b->infos[i].bare = e->slots == 0;
        if (e->slots)
            give_slots(node, e->slots, "slots=", place);
    }
    struct alloc_node *node = &b->a->nodes[i];
    TRY(merge_login(node, place, e, err));
    if (node->max_slots && node->slots > node->max_slots)
        return host_complain(place, e->slots_at ? e->slots_at : e->host, err,
                             "%d slots are more than max_slots=%d of '%s'", node->slots,
                             node->max_slots, node->name);
    return 0;
}

int host_names(const struct host_place *place, const struct host_entry *e,
               struct strv *names, struct ddp_err *err)
{
    struct ddp_err why;
    size_t at;
    if (e->literal)
        strv_push_nodup(names, xstrndup(e->host, e->host_len));
    else if (hostlist_term(e->host, e->host_len, names, &at, &why) < 0)
        return host_complain(place, e->host + at, err, "%s", why.text);
    return 0;
}

int hostbook_add(struct hostbook *b, const struct host_place *place,
                 const struct host_entry *e, struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv names = {0};
    TRY(host_names(place, e, &names, err));
    for (size_t i = 0; i < names.n; i++)
        TRY(add_name(b, names.v[i], place, e, err));
    return 0;
}
