/* launcher/alloc/hosts_arg.c - -H n1:4,n2,user@n[3-8]:2
 *
 * Alone it is the allocation; beside a hostfile it selects from it. Items are separated
 * by commas outside brackets; one comma at the end is allowed, since lists are often made
 * by a loop, but an empty item in the middle is an error.
 */
#include "common/err.h"
#include "common/mem.h"
#include "launcher/alloc/hostbook.h"
#include "launcher/alloc/hosts.h"
#include "launcher/alloc/source.h"

#include <stdlib.h>
#include <string.h>

typedef int (*item_fn)(const struct host_place *place, const struct host_entry *e,
                       void *arg, struct ddp_err *err);

/* Parse each item of -H and pass it to `fn`. */
static int each_item(const struct opts *opts, item_fn fn, void *arg, struct ddp_err *err)
{
    const char *text = opts->hosts;
    struct host_place place = {opts_hosts_by(opts), 0, text, strlen(text)};
    for (const char *p = text, *next, *end;; p = next + 1) {
        next = host_item(&p, text + place.len, &end);
        if (p == end && !*next && p > text && next[-1] == ',')
            return 0;
        if (p == end)
            return host_complain(&place, p, err, "a host name is missing here");
        const char *blank = p + strcspn(p, " \t\r\n");
        if (blank < end)
            return host_complain(&place, blank, err,
                                 "a blank inside a host; separate hosts by commas");
        struct host_entry e;
        if (host_word(&place, p, end, &e, err) < 0 || fn(&place, &e, arg, err) < 0)
            return -1;
        if (!*next)
            return 0;
    }
}

static bool detect(const struct opts *opts)
{
    return opts->hosts != NULL;
}

static int add_item(const struct host_place *place, const struct host_entry *e, void *arg,
                    struct ddp_err *err)
{
    if (e->exclude)
        return host_complain(place, e->host - 1, err,
                             "'^' leaves a host out of a hostfile; there is none");
    return hostbook_add(arg, place, e, err);
}

static int read_hosts(const struct opts *opts, struct alloc *alloc, struct ddp_err *err)
{
    struct hostbook *book = hostbook_create(alloc, REPEAT_ADDS);
    int rc = each_item(opts, add_item, book, err);
    hostbook_destroy(book);
    return rc;
}

const struct alloc_source alloc_hosts_arg = {"hosts", detect, read_hosts, NULL, NULL};

/* --- beside a hostfile -------------------------------------------------------------- */

struct filter {
    const struct opts *opts;
    struct alloc *all;
    struct hostbook *book;
    size_t *order; /* selected nodes, in the order of -H */
    size_t nnamed;
    bool *named, *excluded;
};

static int pick_name(struct filter *f, const char *name, const struct host_place *place,
                     const struct host_entry *e, struct ddp_err *err)
{
    struct ddp_err unknown;
    long i = hostbook_find(f->book, name, place, e->host, &unknown);
    if (i < 0)
        return host_complain(
            place, e->host, err,
            f->opts->hostfile ? "'%s' is not in the hostfile '%s', or ambiguous"
                              : "'%s' is not in the allocation of %s, or ambiguous",
            name, f->opts->hostfile ? f->opts->hostfile : f->all->source);
    struct alloc_node *node = &f->all->nodes[i];
    if (e->exclude) {
        f->excluded[i] = true;
        return 0;
    }
    if (f->named[i])
        return host_complain(place, e->host, err, "'%s' is picked twice", name);
    f->named[i] = true;
    f->order[f->nnamed++] = (size_t)i;
    if (e->user) {
        free(node->user);
        node->user = xstrndup(e->user, e->user_len);
    }
    if (!e->slots)
        return 0;
    if (node->slots && e->slots > node->slots && !f->opts->oversubscribe)
        return host_complain(place, e->slots_at, err,
                             "'%s' has %d slot%s in %s; --oversubscribe allows more",
                             name, node->slots, node->slots == 1 ? "" : "s",
                             f->opts->hostfile ? "the hostfile" : "the allocation");
    alloc_set_slots(node, e->slots, SLOTS_GIVEN, "-H: slots=%d", e->slots);
    return 0;
}

static int pick_item(const struct host_place *place, const struct host_entry *e,
                     void *arg, struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv names = {0};
    TRY(host_names(place, e, &names, err));
    for (size_t i = 0; i < names.n; i++)
        TRY(pick_name(arg, names.v[i], place, e, err));
    return 0;
}

/* Keep the selected nodes, in the order of -H. If -H only excludes, keep everything else.
 */
static void apply(const struct filter *f)
{
    struct alloc *a = f->all;
    struct alloc_node *picked = xcalloc(a->nnodes, sizeof *picked);
    size_t n = 0, most = f->nnamed ? f->nnamed : a->nnodes;
    for (size_t k = 0; k < most; k++) {
        size_t i = f->nnamed ? f->order[k] : k;
        if (f->excluded[i])
            continue;
        picked[n++] = a->nodes[i];
        a->nodes[i] = (struct alloc_node){0};
    }
    for (size_t i = 0; i < a->nnodes; i++)
        alloc_node_finish(&a->nodes[i]);
    free(a->nodes);
    a->nodes = picked;
    a->room = a->nnodes;
    a->nnodes = n;
}

int hosts_arg_filter(const struct opts *opts, struct alloc *alloc, struct ddp_err *err)
{
    OWNED size_t *order = xcalloc(alloc->nnodes, sizeof *order);
    OWNED bool *named = xcalloc(alloc->nnodes, sizeof *named);
    OWNED bool *excluded = xcalloc(alloc->nnodes, sizeof *excluded);
    struct filter f = {.opts = opts,
                       .all = alloc,
                       .book = hostbook_create(alloc, REPEAT_ADDS),
                       .order = order,
                       .named = named,
                       .excluded = excluded};
    int rc = each_item(opts, pick_item, &f, err);
    hostbook_destroy(f.book);
    if (rc == 0)
        apply(&f);
    return rc;
}
