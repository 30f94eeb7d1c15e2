/* launcher/plugins/mpi/pmix_fence.c - fence and direct modex across nodes, and spawn
 *
 * A fence sends the data of the local ranks and returns with that of all; a direct modex
 * is a request to the node of one rank, and its answer; a spawn is one to the launcher.
 * Until then libpmix's completion function is kept.
 */
#define LOG_SUBSYS "pmix"
#include "launcher/plugins/mpi/pmix_impl.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/plugins/mpi/pmix_proc.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* A fence, a modex or a spawn that has not been answered. */
struct pmix_pending {
    uint8_t *key; /* owned: of a fence */
    size_t nkey;
    uint32_t id; /* of a modex or a spawn */
    pmix_modex_cbfunc_t give;
    pmix_spawn_cbfunc_t spawned;
    void *cbdata;
    struct pmix_pending *prev, *next;
};

/* The number of operations of one set of ranks: each server counts its own. */
struct pmix_count {
    void *key; /* owned: the set */
    size_t size;
    uint32_t n;
    struct pmix_count *next;
};

uint32_t pmix_count(struct pmix_server *s, const void *key, size_t size)
{
    struct pmix_count *n;
    LL_FOREACH (s->counts, n) {
        if (n->size == size && (size == 0 || memcmp(n->key, key, size) == 0))
            return n->n++;
    }
    n = xcalloc(1, sizeof *n);
    n->size = size;
    n->key = size ? xmemdup(key, size) : NULL;
    LL_PREPEND(s->counts, n);
    return n->n++;
}

void pmix_count_forget(struct pmix_server *s, const char *nspace)
{
    struct pmix_count *n, *next;
    LL_FOREACH_SAFE(s->counts, n, next)
    {
        if (!memmem(n->key, n->size, nspace, strlen(nspace)))
            continue;
        LL_DELETE(s->counts, n);
        free(n->key);
        free(n);
    }
}

/* The nodes of those ranks, each once, in order. */
static void nodes_of(const struct pmix_server *s, const struct pmix_call *c,
                     struct msg_fence *m)
{
    OWNED bool *in = xcalloc(s->map.nnodes, sizeof *in);
    for (uint32_t i = 0; i < c->nranks; i++) {
        if (c->ranks[i] < s->map.nranks)
            in[s->map.node_of[c->ranks[i]]] = true;
    }
    m->nodes = c->nranks ? xcalloc(s->map.nnodes, sizeof *m->nodes) : NULL;
    for (uint32_t i = 0; m->nodes && i < s->map.nnodes; i++) {
        if (in[i])
            m->nodes[m->nnodes++] = i;
    }
}

void pmix_fence(struct pmix_server *s, const struct pmix_call *c)
{
    struct pack key = {0};
    uint32_t number = pmix_count(s, c->ranks, c->nranks * sizeof *c->ranks);
    pack_u32(&key, number);
    for (uint32_t i = 0; i < c->nranks; i++)
        pack_u32(&key, c->ranks[i]);
    struct pmix_pending *p = xcalloc(1, sizeof *p);
    *p = (struct pmix_pending){
        .key = key.p, .nkey = key.n, .give = c->answer.give, .cbdata = c->cbdata};
    DL_APPEND(s->fences, p);
    SCOPED(msg_fence_finish)
    struct msg_fence m = {.service = SERVICE_PMIX,
                          .key = key.p,
                          .nkey = (uint32_t)key.n,
                          .status = c->status,
                          .data = c->data,
                          .ndata = (uint32_t)c->size};
    nodes_of(s, c, &m);
    log_debug("fence %u of %u ranks brings %zu bytes, status %d", number, c->nranks,
              c->size, c->status);
    pmix_send(s, MSG_FENCE, &m);
}

enum { PEER_ASKS, PEER_ANSWERS };

static void send_peer(struct pmix_server *s, uint32_t node, unsigned what, uint32_t id,
                      uint32_t number, const void *data, size_t size)
{
    SCOPED(pack_finish) struct pack k = {0};
    pack_u8(&k, what);
    pack_u32(&k, id);
    pack_u32(&k, number);
    pack_bytes(&k, data, size);
    pmix_send(s, MSG(peer, node, SERVICE_PMIX, k.p, (uint32_t)k.n));
}

void pmix_answer_peer(struct pmix_server *s, uint32_t node, uint32_t id, int status,
                      const void *data, size_t size)
{
    send_peer(s, node, PEER_ANSWERS, id, (uint32_t)status, data, size);
}

void pmix_modex(struct pmix_server *s, const struct pmix_call *c)
{
    if (c->rank >= s->map.nranks) {
        c->answer.give(PMIX_ERR_NOT_FOUND, NULL, 0, c->cbdata, NULL, NULL);
        return;
    }
    struct pmix_pending *p = xcalloc(1, sizeof *p);
    *p = (struct pmix_pending){
        .id = ++s->last_id, .give = c->answer.give, .cbdata = c->cbdata};
    DL_APPEND(s->modexes, p);
    send_peer(s, s->map.node_of[c->rank], PEER_ASKS, p->id, c->rank, NULL, 0);
}

static void give(struct pmix_pending *p, int status, const void *data, size_t size)
{
    void *copy = size > 0 ? xmemdup(data, size) : NULL;
    p->give(status, copy, size, p->cbdata, free, copy);
}

static void pending_free(struct pmix_pending *p)
{
    free(p->key);
    free(p);
}

void pmix_on_fence(struct pmix_server *s, const struct msg_fence *m)
{
    struct pmix_pending *p, *next;
    DL_FOREACH_SAFE (s->fences, p, next) {
        if (p->nkey != m->nkey || memcmp(p->key, m->key, m->nkey) != 0)
            continue;
        DL_DELETE(s->fences, p);
        give(p, m->status, m->data, m->ndata);
        pending_free(p);
        break;
    }
}

static void answer_peer(struct pmix_server *s, uint32_t node, uint32_t id, uint32_t rank)
{
    pmix_status_t rc = pmix_calls_ask(s, node, id, rank);
    if (rc != PMIX_SUCCESS)
        pmix_answer_peer(s, node, id, (int)rc, NULL, 0);
}

static void handle_answer(struct pmix_server *s, uint32_t id, int status,
                          const struct unpack *u)
{
    struct pmix_pending *p;
    DL_SEARCH_SCALAR(s->modexes, p, id, id);
    if (!p)
        return;
    DL_DELETE(s->modexes, p);
    give(p, status, u->p, u->n);
    pending_free(p);
}

int pmix_on_peer(struct pmix_server *s, const struct msg_peer *m, struct ddp_err *err)
{
    struct unpack u = {.p = m->data, .n = m->ndata};
    unsigned what = unpack_u8(&u);
    uint32_t id = unpack_u32(&u), number = unpack_u32(&u);
    if (u.bad)
        return err_set(err, "a truncated message from another PMIx server");
    if (what == PEER_ASKS)
        answer_peer(s, m->node, id, number);
    else
        handle_answer(s, id, (int)number, &u);
    return 0;
}

void pmix_spawn(struct pmix_server *s, struct pmix_call *c)
{
    struct pmix_pending *p = xcalloc(1, sizeof *p);
    *p = (struct pmix_pending){
        .id = ++s->last_id, .spawned = c->answer.spawned, .cbdata = c->cbdata};
    DL_APPEND(s->spawns, p);
    c->spawn.service = SERVICE_PMIX;
    c->spawn.rank = c->rank;
    c->spawn.id = p->id;
    pmix_send(s, MSG_SPAWN, &c->spawn);
}

void pmix_on_spawned(struct pmix_server *s, const struct msg_spawn_result *m)
{
    char nspace[PMIX_MAX_NSLEN + 1] = "";
    struct pmix_pending *p;
    DL_SEARCH_SCALAR(s->spawns, p, id, m->id);
    if (!p)
        return;
    DL_DELETE(s->spawns, p);
    if (m->job)
        snprintf(nspace, sizeof nspace, PMIX_NSPACE_FORMAT, m->job);
    p->spawned(m->job ? PMIX_SUCCESS : PMIX_ERR_PROC_FAILED_TO_START, nspace, p->cbdata);
    pending_free(p);
}
