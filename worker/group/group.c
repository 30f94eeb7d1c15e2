/* worker/group/group.c - creation and destruction of groups (include/ddprun/group.h) */
#include "worker/group/group.h"

#include "common/ambient_launcher.h"
#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/group/backend.h"
#include "worker/group/bootstrap.h"
#include "worker/group/mailbox.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_RANKS = 1 << 20, /* coll_what() */
    DEFAULT_TIMEOUT_MS = 300000,
    DEFAULT_ARENA = 64 << 20,
    SPIN_NS = 50000,
    SHARED_SPIN_NS = 1000,
    TCP_SPIN_NS = 20000
};

/* The longest timeout is 34 years, so that it can be added to a time. */
static int64_t timeout_of(int64_t ms)
{
    const int64_t most = INT64_C(1) << 40;
    return ms <= 0 ? DEFAULT_TIMEOUT_MS : ms < most ? ms : most;
}

/* Counts the groups of a name that a rank creates. The count is part of the key in the
 * store, so that a second group does not read the first one's cards. All ranks count
 * alike. Kept for the life of the process. */
static unsigned next_generation(const char *name, int rank)
{
    static struct seen {
        struct seen *next;
        char *name;
        int rank;
        unsigned n;
    } * all;
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    struct seen *s = all;
    while (s && (s->rank != rank || strcmp(s->name, name) != 0))
        s = s->next;
    if (!s) {
        s = xcalloc(1, sizeof *s);
        *s = (struct seen){.next = all, .name = xstrdup(name), .rank = rank};
        all = s;
    }
    unsigned n = s->n++;
    pthread_mutex_unlock(&lock);
    return n;
}

static int place(const struct ddp_group_options *o, const struct backend *backend,
                 struct ambient_rank *p, struct ddp_err *err)
{
    if (backend == &backend_mpi)
        return mpi_begin(&p->rank, &p->size, err);
    if (o->rank < 0 || o->size <= 0)
        return ambient_launcher_rank(p, ambient_launcher_env, err);
    *p = (struct ambient_rank){.rank = o->rank, .size = o->size};
    return p->rank < p->size ? 0
                             : err_set(err, "rank %d in a group of %d", p->rank, p->size);
}

/* ---- backends ---- */

static int advance_own(struct ddp_group *g, struct coll *c, int *culprit,
                       struct ddp_err *err)
{
    *culprit = -1;
    return coll_by_messages(c->kind) ? alltoall_advance(g, c, err)
                                     : hier_advance(g->hier, c, culprit, err);
}

const struct backend backend_shm = {.name = "shm", .advance = advance_own};
const struct backend backend_tcp = {.name = "tcp", .advance = advance_own};
const struct backend backend_hier = {.name = "shm+tcp", .advance = advance_own};

const struct backend *backend_of_layout(const struct layout *l)
{
    if (l->nhosts == 1)
        return &backend_shm;
    return l->nhosts == l->size ? &backend_tcp : &backend_hier;
}

/* NULL: chosen by the layout. "shm", "tcp" and "shm+tcp" are preferences. */
static int choose(const char *name, const struct backend **backend, struct ddp_err *err)
{
    if (!name || strcmp(name, "tcp") == 0 || strcmp(name, "shm") == 0 ||
        strcmp(name, "shm+tcp") == 0)
        return 0;
    *backend = strcmp(name, "nccl") == 0  ? &backend_nccl
               : strcmp(name, "mpi") == 0 ? &backend_mpi
                                          : NULL;
    if (*backend)
        return 0;
    return err_set(
        err,
        "unknown backend '%s': 'shm', 'tcp', 'shm+tcp', 'mpi', 'nccl', or none "
        "to let it be chosen",
        name);
}

/* ---- joining ---- */

/* Tell the others that this rank cannot join. */
static int cannot_open(struct ddp_group *g, struct ddp_err *err)
{
    if (g->layout.size == 1 || g->broken || group_adopt_family_failure(g, -1, err) < 0)
        return -1;
    if (g->tcp || g->shm)
        err_prefix(err, "%s", layout_who(&g->layout, g->layout.rank).text);
    return group_break(g, -1, err);
}

static int connect_all(struct ddp_group *g, struct listeners *listeners,
                       struct ddp_err *err)
{
    int nlocal;
    layout_host(&g->layout, g->layout.members[g->layout.rank].host, &nlocal);
    if (g->layout.nhosts > 1)
        g->tcp = tcp_create(&g->layout, listeners, &g->number);
    if (nlocal > 1) {
        g->shm =
            shm_join(&g->layout, listeners->unix_fd, g->arena_bytes, g->timeout_ms, err);
        if (!g->shm)
            return cannot_open(g, err);
    }
    g->spin_ns = !g->shm ? TCP_SPIN_NS : g->shm->shares_cpu ? SHARED_SPIN_NS : SPIN_NS;
    g->hier = hier_create(&g->layout, g->tcp, g->shm, err);
    return g->hier ? 0 : cannot_open(g, err);
}

static int open_backend(struct ddp_group *g, struct ddp_err *err)
{
    arrivals_open(g);
    if (!g->backend || !g->backend->open)
        g->backend = backend_of_layout(&g->layout);
    return g->backend->open && g->backend->open(g, err) < 0 ? cannot_open(g, err) : 0;
}

/* Exchange cards, which give the layout. */
static int meet(struct ddp_group *g, struct bootstrap *m, bootstrap_fn exchange,
                struct listeners *listeners, struct ddp_err *err)
{
    OWNED struct card *cards = xcalloc((size_t)m->size, sizeof *cards);
    struct ddp_err why;
    int rc = listeners_open(listeners, &g->card, &why);
    m->card = &g->card;
    m->cards = cards;
    if (rc == 0 || m->parent) /* whose other members wait for my card */
        TRY(exchange(m, err));
    if (rc < 0) {
        *err = why;
        return -1;
    }
    return layout_from_cards(&g->layout, m->rank, m->size, cards, err);
}

static void set_world_ranks(struct layout *l, const struct bootstrap *m)
{
    static const struct layout job;
    const struct layout *parent = m->parent ? &m->parent->layout : &job;
    int same = 0;
    while (same < m->size && layout_world(parent, m->ranks[same]) == same)
        same++;
    if (same == m->size)
        return;
    l->world_ranks = xcalloc((size_t)m->size, sizeof *m->ranks);
    for (int i = 0; i < m->size; i++)
        l->world_ranks[i] = layout_world(parent, m->ranks[i]);
}

int group_meet(struct ddp_group *g, struct bootstrap *m, bootstrap_fn exchange,
               struct ddp_err *err)
{
    SCOPED(listeners_close) struct listeners listeners = {-1, -1};
    if (m->size == 1)
        layout_single(&g->layout);
    else
        TRY(meet(g, m, exchange, &listeners, err));
    if (m->ranks)
        set_world_ranks(&g->layout, m);
    TRY(connect_all(g, &listeners, err));
    return open_backend(g, err);
}

static int join(struct ddp_group *g, const struct ddp_group_options *o,
                const struct ambient_rank *p, struct ddp_err *err)
{
    const char *url = o->meeting ? o->meeting : getenv("DDP_MEETING");
    struct bootstrap m = {.port = o->master_port,
                          .ranks = o->world_ranks,
                          .rank = p->rank,
                          .size = p->size,
                          .deadline_ms = now_ms() + g->timeout_ms};
    bootstrap_fn exchange = bootstrap_mpi;
    snprintf(m.addr, sizeof m.addr, "%s", o->master_addr ? o->master_addr : "");
    if (g->backend != &backend_mpi)
        exchange = bootstrap_find(&m, url && *url ? url : NULL, err);
    if (!exchange || card_make(&g->card, p->rank, *m.addr ? m.addr : NULL, m.deadline_ms,
                               g->alone, err) < 0)
        return -1;
    /* torchrun's store outlives its ranks: restarted ranks must not read what the
     * previous attempt has left there */
    const char *attempt = getenv("TORCHELASTIC_RESTART_COUNT");
    OWNED char *key =
        xasprintf("%s/group/%u.%s", g->name, next_generation(g->name, p->rank),
                  attempt && *attempt ? attempt : "0");
    m.name = key;
    return group_meet(g, &m, exchange, err);
}

/* ---- forked processes ---- */

static struct ddp_group *all_groups; /* of this process, the newest first */
static pthread_mutex_t all_lock = PTHREAD_MUTEX_INITIALIZER;

static void lock_all(void)
{
    pthread_mutex_lock(&all_lock);
}

static void unlock_all(void)
{
    pthread_mutex_unlock(&all_lock);
}

/* A child may outlive this rank, whose end other hosts see by that of its streams. */
static void on_fork(void)
{
    for (struct ddp_group *g = all_groups; g; g = g->made_before) {
        g->inherited = true;
        if (g->tcp)
            tcp_close_copies(g->tcp);
    }
    unlock_all();
}

static void watch_forks(void)
{
    pthread_atfork(lock_all, unlock_all, on_fork);
}

struct ddp_group *group_new(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
    struct ddp_group *g = xcalloc(1, sizeof *g);
    lock_all();
    g->made_before = all_groups;
    all_groups = g;
    unlock_all();
    return g;
}

/* Takes it out of the lists of all groups, and of its family. */
static void forget_group(const struct ddp_group *g)
{
    struct ddp_group *before = g->family;
    while (before->family != g)
        before = before->family;
    before->family = g->family;
    lock_all();
    struct ddp_group **at = &all_groups;
    while (*at != g)
        at = &(*at)->made_before;
    *at = g->made_before;
    unlock_all();
}

int group_check_owner(const struct ddp_group *g, struct ddp_err *err)
{
    return g->inherited
               ? err_set(err,
                         "only the process that has made a group may use it, and "
                         "this is a fork of rank %d's",
                         g->layout.rank)
               : 0;
}

struct ddp_group *ddp_group_init(const struct ddp_group_options *options,
                                 struct ddp_err *err)
{
    static const struct ddp_group_options defaults = {.rank = -1};
    const struct ddp_group_options *o = options ? options : &defaults;
    const struct backend *backend = NULL;
    struct ddp_err unwanted;
    err = err ? err : &unwanted;
    if (choose(o->backend, &backend, err) < 0)
        return NULL;
    struct ambient_rank p;
    if (place(o, backend, &p, err) < 0)
        return NULL;
    if (p.size > MOST_RANKS) {
        err_set(err, "a group of %d ranks: it can have %d at most", p.size, MOST_RANKS);
        return NULL;
    }
    struct ddp_group *g = group_new();
    g->name = xstrdup(o->name ? o->name : "ddp");
    g->timeout_ms = timeout_of(o->timeout_ms);
    g->arena_bytes = o->arena_bytes ? o->arena_bytes : DEFAULT_ARENA;
    g->alone = o->backend && strcmp(o->backend, "tcp") == 0;
    g->family = g;
    g->backend = backend;
    if (p.size > 1)
        hang_info_joining(g, p.size, o->world_ranks);
    int rc = p.size == 1 ? group_meet(g, &(struct bootstrap){.size = 1}, NULL, err)
                         : join(g, o, &p, err);
    hang_info_clear();
    if (rc < 0) {
        err_prefix(err, "rank %d cannot join group '%s'", p.rank, g->name);
        ddp_group_destroy(g);
        return NULL;
    }
    return g;
}

void ddp_group_set_timeout(struct ddp_group *g, int64_t timeout_ms)
{
    g->timeout_ms = timeout_of(timeout_ms);
}

int64_t ddp_group_timeout(const struct ddp_group *g)
{
    return g->timeout_ms;
}

void ddp_group_destroy(struct ddp_group *g)
{
    if (!g)
        return;
    bool own = !g->inherited;
    forget_group(g);
    requests_free(g);
    if (g->backend && g->backend->close && own)
        g->backend->close(g);
    if (own) {
        p2p_announce_leave(g);
        watch_leave(g);
    }
    mailboxes_free(g);
    hier_destroy(g->hier);
    tcp_destroy(g->tcp);
    shm_leave(g->shm, own);
    if (g->layout.members)
        layout_finish(&g->layout);
    while (g->private_blocks) {
        struct private_block *b = g->private_blocks;
        g->private_blocks = b->next;
        free(b);
    }
    free(g->name);
    free(g);
}

int ddp_group_rank(const struct ddp_group *g)
{
    return g->layout.rank;
}

int ddp_group_size(const struct ddp_group *g)
{
    return g->layout.size;
}

const char *ddp_group_backend(const struct ddp_group *g)
{
    return g->backend->name;
}

void *ddp_arena_alloc(struct ddp_group *g, size_t bytes, struct ddp_err *err)
{
    if (group_check_owner(g, err) < 0)
        return NULL;
    if (g->shm)
        return shm_arena_alloc(g->shm, bytes, err);
    size_t head = SHM_LINE, room = (bytes + head - 1) / head * head + head;
    struct private_block *b = room > bytes ? aligned_alloc(SHM_LINE, room) : NULL;
    if (!b) {
        err_set(err, "no memory for %zu bytes", bytes);
        return NULL;
    }
    memset(b, 0, room);
    b->next = g->private_blocks;
    g->private_blocks = b;
    return (char *)b + head;
}

void *ddp_arena_of(const struct ddp_group *g, const void *mine, int rank)
{
    const struct layout *l = &g->layout;
    const struct shm *s = g->shm;
    if (rank == l->rank)
        return (void *)(uintptr_t)mine;
    if (!s || rank < 0 || rank >= l->size || !layout_is_here(l, rank))
        return NULL;
    int64_t at = shm_where(s, mine, 1);
    return at < 0 ? NULL
                  : s->base + at + (l->members[rank].local - s->me) * s->arena_stride;
}
