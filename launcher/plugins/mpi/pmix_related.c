/* launcher/plugins/mpi/pmix_related.c - see pmix_related.h
 *
 * A job's part is, for each of its ranks that takes part in a connect, the rank's number,
 * the size of what it has committed, and that. For a fence it is the fence's data.
 */
#define LOG_SUBSYS "pmix"
#include "launcher/plugins/mpi/pmix_related.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/plugins/mpi/pmix_proc.h"
#include "launcher/plugins/mpi/pmix_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* What another job has sent. */
struct part {
    struct pack data;
    char *nspace;    /* owned */
    uint32_t nranks; /* of that job */
    struct strv map; /* as in msg_serve */
    struct part *next;
};

struct related_op {
    struct pmix_server *server; /* borrowed */
    uint32_t id;
    char *key; /* owned: the same in all servers: what, the ranks, how often so far */
    pmix_proc_t *procs; /* owned, sorted */
    size_t nprocs;
    uint32_t *ranks, nranks; /* owned: of this job; none: all */
    unsigned awaited;        /* local ranks whose data libpmix has not given yet */
    struct pack mine;        /* of the local ranks, then of all of this job */
    bool ready;              /* ... it is of all */
    bool first;              /* this node is the first of them: it sends their part */
    struct part *parts;      /* owned */
    int status;              /* of this job's fence */
    bool connects;
    pmix_op_cbfunc_t done;    /* of a connect */
    pmix_modex_cbfunc_t give; /* of a fence */
    void *cbdata;
    struct related_op *prev, *next;
};

/* What a rank of another job has committed. */
struct foreign_rank {
    char *nspace; /* owned */
    uint32_t rank;
    struct pack data;
    struct foreign_rank *next;
};

/* --- which operation ---------------------------------------------------------------- */

static int compare_procs(const void *a, const void *b)
{
    const pmix_proc_t *p = a, *q = b;
    int by_job = strcmp(p->nspace, q->nspace);
    return by_job ? by_job : (p->rank > q->rank) - (p->rank < q->rank);
}

static bool is_own(const struct related_op *op, size_t i)
{
    return pmix_is_own(op->server, &op->procs[i]);
}

/* Operations of the same ranks are numbered: each server counts its own. */
static char *key_of(const struct related_op *op)
{
    char *text = NULL, *key;
    size_t size;
    FILE *f = xmemstream(&text, &size);
    fputs(op->connects ? "connect" : "fence", f);
    for (size_t i = 0; i < op->nprocs; i++)
        fprintf(f, " %s:%u", op->procs[i].nspace, op->procs[i].rank);
    xmemclose(f);
    key = xasprintf("%s #%u", text, pmix_count(op->server, text, size));
    free(text);
    return key;
}

/* The ranks of this job, and the first node that has one of them. */
static void find_own_ranks(struct related_op *op)
{
    const struct pmix_server *s = op->server;
    uint32_t first = UINT32_MAX;
    bool all = false;
    op->ranks = xcalloc(op->nprocs, sizeof *op->ranks);
    for (size_t i = 0; i < op->nprocs; i++) {
        uint32_t rank = op->procs[i].rank;
        if (!is_own(op, i))
            continue;
        if (rank >= s->map.nranks) { /* PMIX_RANK_WILDCARD */
            all = true;
            continue;
        }
        op->ranks[op->nranks++] = rank;
        first = s->map.node_of[rank] < first ? s->map.node_of[rank] : first;
    }
    if (all)
        op->nranks = 0;
    op->first = s->serve.node == (all ? 0 : first);
}

static void op_free(struct related_op *op)
{
    struct part *p, *next;
    LL_FOREACH_SAFE(op->parts, p, next)
    {
        pack_finish(&p->data);
        free(p->nspace);
        strv_finish(&p->map);
        free(p);
    }
    pack_finish(&op->mine);
    free(op->key);
    free(op->procs);
    free(op->ranks);
    free(op);
}

/* --- its end ------------------------------------------------------------------------ */

static struct part *part_of(const struct related_op *op, const char *nspace)
{
    struct part *p;
    LL_FOREACH (op->parts, p) {
        if (strcmp(p->nspace, nspace) == 0)
            return p;
    }
    return NULL;
}

static struct foreign_rank *find_foreign(const struct pmix_server *s, const char *nspace,
                                         uint32_t rank)
{
    struct foreign_rank *r;
    LL_FOREACH (s->foreign, r) {
        if (r->rank == rank && strcmp(r->nspace, nspace) == 0)
            break;
    }
    return r;
}

static void keep_rank(struct pmix_server *s, const char *nspace, uint32_t rank,
                      const void *data, size_t size)
{
    struct foreign_rank *r = find_foreign(s, nspace, rank);
    if (!r) {
        r = xcalloc(1, sizeof *r);
        r->nspace = xstrdup(nspace);
        r->rank = rank;
        LL_PREPEND(s->foreign, r);
    }
    pack_finish(&r->data);
    pack_bytes(&r->data, data, size);
}

/* libpmix learns of the other job; what its ranks have committed is kept for modexes. */
static int register_job(struct pmix_server *s, const struct part *p, struct ddp_err *err)
{
    struct unpack u = {.p = p->data.p, .n = p->data.n};
    while (u.n > 0 && !u.bad) {
        uint32_t rank = unpack_u32(&u), size = unpack_u32(&u);
        const uint8_t *data = unpack_bytes(&u, size);
        if (data)
            keep_rank(s, p->nspace, rank, data, size);
    }
    if (u.bad)
        return err_set(err, "job '%s' has sent invalid data", p->nspace);
    if (strv_env_get(&s->known, p->nspace))
        return 0;
    if (pmix_world_add(p->nspace, p->nranks, &p->map, err) < 0)
        return -1;
    strv_env_set(&s->known, p->nspace, "");
    return 0;
}

static void on_deregistered(pmix_status_t status, void *cbdata) {}

void related_job_ended(struct pmix_server *s, const char *id)
{
    OWNED char *nspace = xasprintf(PMIX_NSPACE_FORMAT, id);
    struct foreign_rank *r, *next;
    if (!strv_env_get(&s->known, nspace))
        return;
    strv_env_set(&s->known, nspace, NULL);
    LL_FOREACH_SAFE(s->foreign, r, next)
    {
        if (strcmp(r->nspace, nspace) != 0)
            continue;
        LL_DELETE(s->foreign, r);
        pack_finish(&r->data);
        free(r->nspace);
        free(r);
    }
    pmix_count_forget(s, nspace);
    PMIx_server_deregister_nspace(nspace, on_deregistered, NULL); /* does not wait */
    log_debug("job '%s' has ended", nspace);
}

static void end_connect(struct related_op *op)
{
    struct ddp_err err;
    const struct part *p;
    pmix_status_t rc = op->status;
    LL_FOREACH (op->parts, p) {
        if (rc == PMIX_SUCCESS && register_job(op->server, p, &err) < 0) {
            log_warn("ranks of two jobs cannot connect: %s", err.text);
            rc = PMIX_ERROR;
        }
    }
    op->done(rc, op->cbdata);
}

static void end_fence(struct related_op *op)
{
    struct pack all = {0};
    const struct part *p;
    pack_bytes(&all, op->mine.p, op->mine.n);
    LL_FOREACH (op->parts, p)
        pack_bytes(&all, p->data.p, p->data.n);
    op->give(op->status, (const char *)all.p, all.n, op->cbdata, free, all.p);
}

static void check(struct related_op *op)
{
    struct pmix_server *s = op->server;
    for (size_t i = 0; i < op->nprocs; i++) {
        if (is_own(op, i) ? !op->ready : !part_of(op, op->procs[i].nspace))
            return;
    }
    log_debug("%s is complete", op->key);
    DL_DELETE(s->related, op);
    if (op->connects)
        end_connect(op);
    else
        end_fence(op);
    op_free(op);
}

/* --- this job's part ---------------------------------------------------------------- */

static void send_part(const struct related_op *op)
{
    const struct msg_serve *own = &op->server->serve;
    SCOPED(pack_finish) struct pack k = {0};
    pack_u8(&k, RELATED_PART);
    pack_str(&k, op->key);
    pack_str(&k, own->nspace);
    pack_u32(&k, own->nranks);
    pack_strs(&k, own->map.v, own->map.n);
    pack_bytes(&k, op->mine.p, op->mine.n);
    pmix_send(op->server, MSG(related, k.p, (uint32_t)k.n));
}

/* All ranks of this job have come. */
static void on_own_part(pmix_status_t status, const char *data, size_t size, void *cbdata,
                        pmix_release_cbfunc_t release, void *release_data)
{
    struct related_op *op = cbdata;
    pack_finish(&op->mine);
    pack_bytes(&op->mine, data, size);
    if (release)
        release(release_data);
    op->status = status;
    op->ready = true;
    if (op->first)
        send_part(op);
    check(op);
}

static void fence_own_ranks(struct related_op *op)
{
    struct pmix_call c = {.kind = CALL_FENCE,
                          .status = op->status,
                          .data = op->mine.p,
                          .size = op->mine.n,
                          .ranks = op->ranks,
                          .nranks = op->nranks,
                          .answer.give = on_own_part,
                          .cbdata = op};
    pmix_fence(op->server, &c);
}

void related_committed(struct pmix_server *s, const struct pmix_call *c)
{
    struct related_op *op;
    DL_SEARCH_SCALAR(s->related, op, id, c->id);
    if (!op)
        return;
    pack_u32(&op->mine, c->rank);
    pack_u32(&op->mine, (uint32_t)c->size);
    pack_bytes(&op->mine, c->data, c->size);
    if (--op->awaited == 0)
        fence_own_ranks(op);
}

static bool takes_part(const struct related_op *op, uint32_t rank)
{
    uint32_t i = 0;
    while (i < op->nranks && op->ranks[i] != rank)
        i++;
    return op->nranks == 0 || i < op->nranks;
}

/* Ask libpmix for what the local ranks have committed. */
static void ask_local_ranks(struct related_op *op)
{
    struct pmix_server *s = op->server;
    for (uint32_t r = 0; r < s->map.nranks; r++) {
        if (s->map.node_of[r] == s->serve.node && takes_part(op, r) &&
            pmix_calls_ask(s, RELATED_NODE, op->id, r) == PMIX_SUCCESS)
            op->awaited++;
    }
}

void related_begin(struct pmix_server *s, struct pmix_call *c)
{
    struct related_op *op = xcalloc(1, sizeof *op);
    *op = (struct related_op){.server = s,
                              .id = ++s->last_id,
                              .procs = c->procs,
                              .nprocs = c->nprocs,
                              .status = c->status,
                              .connects = c->connects,
                              .cbdata = c->cbdata};
    c->procs = NULL;
    if (op->connects) {
        op->done = c->answer.done;
    } else {
        op->give = c->answer.give;
        pack_bytes(&op->mine, c->data, c->size);
    }
    qsort(op->procs, op->nprocs, sizeof *op->procs, compare_procs);
    op->key = key_of(op);
    find_own_ranks(op);
    DL_APPEND(s->related, op);
    log_debug("%s begins", op->key);
    if (op->connects)
        ask_local_ranks(op);
    if (op->awaited == 0)
        fence_own_ranks(op);
}

/* --- other jobs --------------------------------------------------------------------- */

void related_modex(struct pmix_server *s, const struct pmix_call *c)
{
    const struct foreign_rank *r = find_foreign(s, c->text, c->rank);
    void *copy = r && r->data.n > 0 ? xmemdup(r->data.p, r->data.n) : NULL;
    c->answer.give(r ? PMIX_SUCCESS : PMIX_ERR_NOT_FOUND, copy, r ? r->data.n : 0,
                   c->cbdata, free, copy);
}

/* Returns false if it is invalid. */
static bool take_part(struct pmix_server *s, struct unpack *u)
{
    struct related_op *op;
    OWNED char *key = unpack_str(u);
    struct part *p = xcalloc(1, sizeof *p);
    p->nspace = unpack_str(u);
    p->nranks = unpack_u32(u);
    unpack_strs(u, &p->map);
    bool good = key && p->nspace && !u->bad;
    DL_FOREACH (s->related, op) {
        if (good && strcmp(op->key, key) == 0)
            break;
    }
    if (!op || strcmp(p->nspace, s->serve.nspace) == 0 || part_of(op, p->nspace)) {
        free(p->nspace);
        strv_finish(&p->map);
        free(p);
        return good;
    }
    pack_bytes(&p->data, u->p, u->n);
    LL_PREPEND(op->parts, p);
    if (op->ready && op->first)
        send_part(op);
    check(op);
    return true;
}

int related_on_message(struct pmix_server *s, const struct msg_related *m,
                       struct ddp_err *err)
{
    struct unpack u = {.p = m->data, .n = m->ndata};
    enum related_what what = unpack_u8(&u);
    bool good = what == RELATED_PART ? take_part(s, &u) : names_on_message(s, what, &u);
    return good ? 0 : err_set(err, "an invalid message from another PMIx server");
}
