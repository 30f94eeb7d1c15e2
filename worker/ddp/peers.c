/* worker/ddp/peers.c - see peers.h */
#include "worker/ddp/peers.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/ddp/kept.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { TAG = 0x7065, MAGIC = 0x34736464 }; /* change MAGIC whenever a part changes */

/* A part: this header; of each piece its place, weights and optimiser states; the
 * buffers. */
struct part {
    uint64_t magic, bytes;
    uint64_t set; /* drawn by each attempt: parts of two attempts never form a set */
    struct train_state at;
    struct optim_counts counts;
    uint64_t floats;
    int32_t part, parts;
    uint32_t npieces, nstates;
    uint64_t count, nbuffers; /* floats: of the pieces, of the buffers */
    char model[128], optimizer[16];
};

/* An entry of the list of all ranks' parts. */
struct entry {
    uint64_t step, set, bytes, at;
    int32_t part, parts, rank, half;
};

/* A part that this rank writes: its own, or one that a rank of the previous host sends.
 */
struct column {
    int rank;
    struct kept_cell cells[KEPT_HALVES]; /* owned */
    struct ddp_request *coming;          /* owned; NULL: none */
};

struct peers {
    struct ddp_group *group;       /* borrowed */
    const struct reducer *reducer; /* borrowed: this rank's pieces */
    int rank, size, fd;
    int nhosts, local, nlocal; /* this rank's number on its host, and the ranks there */
    int next;                  /* -1: there is no other host */
    uint64_t set;
    int half;               /* of the last set */
    struct column *columns; /* owned; the first is this rank's own */
    int ncolumns;
    struct ddp_request *going; /* owned; NULL: none */
    uint64_t sets;
    int64_t stalled_ns;
    char told[256];
};

/* ---- hosts and neighbours ---- */

/* Numbers hosts in the order of their lowest ranks. Rank r's neighbour is the rank with
 * the same local number on the next host, modulo the number of ranks there. Sets `next`
 * of this rank, and its columns. */
static void find_neighbours(struct peers *p, const uint64_t *ids)
{
    size_t size = (size_t)p->size;
    OWNED uint64_t *seen = xcalloc(size, sizeof *seen); /* by host */
    OWNED int *ranks = xcalloc(size, sizeof *ranks);    /* so far */
    OWNED int *host = xcalloc(size, sizeof *host), *local = xcalloc(size, sizeof *local);
    for (int r = 0; r < p->size; r++) {
        int h = r > 0 && ids[r] == ids[r - 1] ? host[r - 1] : 0;
        while (h < p->nhosts && seen[h] != ids[r])
            h++;
        p->nhosts += h == p->nhosts;
        seen[h] = ids[r];
        host[r] = h;
        local[r] = ranks[h]++;
    }
    int mine = host[p->rank], after = (mine + 1) % p->nhosts;
    p->local = local[p->rank];
    p->nlocal = ranks[mine];
    p->next = -1;
    p->columns = xcalloc(size, sizeof *p->columns);
    p->columns[p->ncolumns++].rank = p->rank;
    for (int r = 0; r < p->size && p->nhosts > 1; r++) {
        if (host[r] == after && local[r] == p->local % ranks[after])
            p->next = r;
        if ((host[r] + 1) % p->nhosts == mine && local[r] % p->nlocal == p->local)
            p->columns[p->ncolumns++].rank = r;
    }
}

struct peers *peers_create(struct ddp_group *group, const struct reducer *reducer,
                           int *culprit, struct ddp_err *err)
{
    uint64_t host = 0;
    struct peers *p = xcalloc(1, sizeof *p);
    p->group = group;
    p->reducer = reducer;
    p->rank = ddp_group_rank(group);
    p->size = ddp_group_size(group);
    p->fd = kept_open(&host, err);
    OWNED uint64_t *ids = xcalloc((size_t)p->size, sizeof *ids);
    int rc = replica_agree(group, p->fd < 0 ? -1 : 0, culprit, err);
    if (rc == 0)
        rc = ddp_all_gather(group, &host, ids, 1, DDP_I64, err);
    if (rc == 0) {
        find_neighbours(p, ids);
        if (p->ncolumns > KEPT_COLUMNS)
            rc = err_set(
                err, "checkpoints in memory: %d ranks for one of the next host, %d fit",
                p->ncolumns - 1, KEPT_COLUMNS - 1);
        rc = replica_agree(group, rc, culprit, err);
    }
    if (rc == 0)
        return p;
    peers_destroy(p);
    return NULL;
}

void peers_destroy(struct peers *p)
{
    if (!p)
        return;
    for (int i = 0; i < p->ncolumns; i++)
        for (int half = 0; half < KEPT_HALVES; half++)
            kept_unmap(&p->columns[i].cells[half]);
    close_fd(&p->fd);
    free(p->columns);
    free(p);
}

/* ---- a part ---- */

static int states_of(const struct optim *o)
{
    int n = 0;
    for (int k = 0; k < OPTIM_STATES; k++)
        n += optim_whole(o, k) != NULL;
    return n;
}

static size_t bytes_of(const struct part *h)
{
    return sizeof *h + h->npieces * sizeof(struct bucket) +
           (h->count * (1 + h->nstates) + h->nbuffers) * sizeof(float);
}

static struct part head_of(const struct peers *p, const struct replica *run,
                           const struct train_state *at)
{
    size_t n;
    const struct rank_piece *pieces = reducer_pieces(p->reducer, &n);
    struct part h = {.magic = MAGIC,
                     .set = p->set,
                     .at = *at,
                     .counts = run->optim->counts,
                     .floats = run->floats,
                     .part = p->rank,
                     .parts = p->size,
                     .npieces = (uint32_t)n,
                     .nstates = (uint32_t)states_of(run->optim),
                     .nbuffers = run->nbuffers};
    snprintf(h.model, sizeof h.model, "%s", run->model);
    snprintf(h.optimizer, sizeof h.optimizer, "%s", run->optim->type->name);
    for (size_t i = 0; i < n; i++)
        h.count += pieces[i].at.count;
    h.bytes = bytes_of(&h);
    return h;
}

static char *put(char *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return to + bytes;
}

static void pack(const struct part *h, const struct replica *run, const struct reducer *r,
                 char *to)
{
    size_t n;
    const struct rank_piece *p = reducer_pieces(r, &n), *end = p + n;
    to = put(to, h, sizeof *h);
    for (; p < end; p++) {
        size_t bytes = p->at.count * sizeof(float);
        to = put(to, &p->at, sizeof p->at);
        to = put(to, run->weights + p->at.offset, bytes);
        for (int k = 0; k < OPTIM_STATES; k++)
            if (run->optim->states[k])
                to = put(to, piece_state(p, run->optim, k), bytes);
    }
    if (run->nbuffers)
        put(to, run->buffers, run->nbuffers * sizeof(float));
}

static const char *take(void *to, const char *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return from + bytes;
}

/* Is this a part of a run with the same model and settings? */
static bool fits(const struct part *h, const struct replica *run)
{
    return h->magic == MAGIC && h->bytes == bytes_of(h) && h->part >= 0 &&
           h->part < h->parts && h->npieces <= h->floats && h->count <= h->floats &&
           h->floats == run->floats && h->nbuffers == run->nbuffers &&
           h->nstates == (uint32_t)states_of(run->optim) &&
           memchr(h->at.buckets, 0, sizeof h->at.buckets) &&
           strncmp(h->model, run->model, sizeof h->model - 1) == 0 &&
           strncmp(h->optimizer, run->optim->type->name, sizeof h->optimizer) == 0;
}

static int unpack(const char *message, size_t bytes, const struct replica *run,
                  struct train_state *at, struct ddp_err *err)
{
    const struct part *h = (const void *)message;
    const char *from = (const char *)(h + 1);
    bool sound = fits(h, run) && h->bytes == bytes;
    uint64_t left = sound ? h->count : 0;
    struct bucket piece;
    for (uint32_t i = 0; sound && i < h->npieces; i++, left -= piece.count) {
        from = take(&piece, from, sizeof piece);
        sound = piece.count <= left && piece.offset <= h->floats - piece.count;
        if (!sound)
            break;
        size_t n = piece.count * sizeof(float);
        from = take(run->weights + piece.offset, from, n);
        for (int k = 0; k < OPTIM_STATES; k++)
            if (optim_whole(run->optim, k))
                from = take(optim_whole(run->optim, k) + piece.offset, from, n);
    }
    if (!sound || left > 0)
        return err_set(err, "a part of step %" PRIu64 " in memory is damaged",
                       h->at.step);
    if (run->nbuffers)
        memcpy(run->buffers, from, run->nbuffers * sizeof(float));
    *at = h->at;
    run->optim->counts = h->counts;
    return 0;
}

/* ---- the newest whole set ---- */

/* The parts on this host, listed by its lowest rank. */
static struct entry *list_own(const struct peers *p, const struct replica *run,
                              int64_t *n)
{
    struct entry *v = NULL;
    struct part h;
    int half;
    uint64_t at = 0;
    *n = 0;
    while (p->local == 0 && kept_next(p->fd, &at, &h, sizeof h, &half)) {
        if (!fits(&h, run))
            continue;
        v = xrealloc(v, (size_t)*n + 1, sizeof *v);
        v[(*n)++] =
            (struct entry){h.at.step, h.set, h.bytes, at, h.part, h.parts, p->rank, half};
    }
    return v;
}

/* Sorts newest first, each set together, in the order of its parts. */
static int by_age(const void *left, const void *right)
{
    const struct entry *a = left, *b = right;
    if (a->step != b->step)
        return a->step > b->step ? -1 : 1;
    if (a->set != b->set)
        return a->set < b->set ? -1 : 1;
    return a->part != b->part ? a->part - b->part : a->rank - b->rank;
}

/* Adds the parts on all hosts to an empty list. */
static int list_all(const struct peers *p, const struct replica *run, struct entry **v,
                    size_t *n, struct ddp_err *err)
{
    OWNED int64_t *counts = xcalloc((size_t)p->size, sizeof *counts);
    OWNED size_t *bytes = xcalloc((size_t)p->size, sizeof *bytes);
    int64_t mine;
    OWNED struct entry *own = list_own(p, run, &mine);
    TRY(ddp_all_gather(p->group, &mine, counts, 1, DDP_I64, err));
    for (int r = 0; r < p->size; r++) {
        bytes[r] = (size_t)counts[r] * sizeof **v;
        *n += (size_t)counts[r];
    }
    *v = xcalloc(*n + 1, sizeof **v);
    if (*n > 0)
        TRY(ddp_all_gatherv(p->group, own, *v, bytes, DDP_U8, err));
    qsort(*v, *n, sizeof **v, by_age);
    return 0;
}

/* How many different parts the set that begins there has, and where the next set
 * begins. */
static int parts_there(const struct entry *v, size_t n, size_t from, size_t *end)
{
    int parts = 0;
    size_t i = from;
    for (; i < n && v[i].step == v[from].step && v[i].set == v[from].set; i++)
        parts += i == from || v[i].part != v[i - 1].part;
    *end = i;
    return parts;
}

/* Sends the parts of the set [from, end) to rank 0, each from the lowest rank that has
 * it. */
static int fetch(const struct peers *p, const struct replica *run, struct train_state *at,
                 const struct entry *v, size_t from, size_t end, struct ddp_err *err)
{
    bool good = true;
    for (size_t i = from; i < end; i++) {
        const struct entry *e = &v[i];
        bool twice = i > from && e->part == e[-1].part;
        if (twice || (p->rank != 0 && p->rank != e->rank))
            continue;
        OWNED char *message = xcalloc(1, e->bytes);
        if (p->rank == e->rank && !kept_read(p->fd, e->at, message, e->bytes))
            memset(message, 0, sizeof(struct part)); /* rank 0 will find it damaged */
        if (p->rank != e->rank)
            TRY(ddp_recv(p->group, message, e->bytes, e->rank, TAG, err));
        else if (p->rank != 0)
            TRY(ddp_send(p->group, message, e->bytes, 0, TAG, err));
        if (p->rank == 0 && good) /* receive the others' in any case */
            good = unpack(message, e->bytes, run, at, err) == 0;
    }
    return good ? 0 : -1;
}

static void tell(struct peers *p, bool loaded, uint64_t step, int there, int parts)
{
    if (loaded)
        snprintf(p->told, sizeof p->told, "step %" PRIu64 " from the memory of %d host%s",
                 step, p->nhosts, p->nhosts == 1 ? "" : "s");
    else
        snprintf(p->told, sizeof p->told,
                 "not step %" PRIu64
                 " from memory: %d of its %d parts were on lost hosts",
                 step, parts - there, parts);
}

int peers_load(struct peers *p, const struct replica *run, struct train_state *at,
               bool *loaded, int *culprit, struct ddp_err *err)
{
    OWNED struct entry *v = NULL;
    size_t n = 0, end;
    uint64_t words[2] = {at->step};
    *loaded = false;
    if (getrandom(&words[1], sizeof words[1], 0) < 0)
        words[1] = (uint64_t)now_ns();
    TRY(ddp_broadcast(p->group, words, 2, DDP_I64, 0, err));
    p->set = words[1];
    int rc = list_all(p, run, &v, &n, err);
    for (size_t i = 0; i < n && rc == 0 && !*loaded && v[i].step > words[0]; i = end) {
        int there = parts_there(v, n, i, &end);
        *loaded = there == v[i].parts;
        if (*loaded || i == 0)
            tell(p, *loaded, v[i].step, there, v[i].parts);
        if (*loaded) {
            p->half = v[i].half;
            rc = fetch(p, run, at, v, i, end, err);
        }
    }
    return replica_agree(p->group, rc, culprit, err);
}

const char *peers_told(const struct peers *p)
{
    return p ? p->told : "";
}

/* ---- writing a set ---- */

/* 1: it has ended now; 0: not yet, or there is none. */
static int await(struct ddp_request **r, bool wait, struct ddp_err *err)
{
    int done = 1;
    if (!*r)
        return 0;
    int rc = wait ? ddp_wait(*r, err) : ddp_test(*r, &done, err);
    if (rc < 0 || done)
        *r = NULL;
    return rc < 0 ? -1 : done;
}

/* Every transfer, also if one fails. */
static int advance(struct peers *p, bool wait, struct ddp_err *err)
{
    int rc = 0;
    for (int i = 1; i < p->ncolumns; i++) {
        struct column *c = &p->columns[i];
        int came = await(&c->coming, wait, err);
        if (came > 0)
            kept_set_whole(&c->cells[p->half], true);
        rc = came < 0 ? -1 : rc;
    }
    return await(&p->going, wait, err) < 0 ? -1 : rc;
}

int peers_progress(struct peers *p, struct ddp_err *err)
{
    return advance(p, false, err);
}

int peers_finish(struct peers *p, struct ddp_err *err)
{
    int64_t began = now_ns();
    int rc = advance(p, true, err);
    if (rc == 0)
        rc = ddp_barrier(p->group, err);
    p->stalled_ns += now_ns() - began;
    return rc;
}

void peers_end(struct peers *p)
{
    struct ddp_err ignored;
    advance(p, true, &ignored);
}

/* The cells of this half, once the sizes of the pieces are known, which do not change. */
static int make_room(struct peers *p, size_t mine, struct ddp_err *err)
{
    const int64_t bytes = (int64_t)mine;
    OWNED int64_t *all = xcalloc((size_t)p->size, sizeof *all);
    TRY(ddp_all_gather(p->group, &bytes, all, 1, DDP_I64, err));
    if (p->sets == 1) /* this attempt has one whole set */
        kept_trim(p->fd, p->local, p->nlocal, p->ncolumns);
    for (int i = 0; i < p->ncolumns; i++) {
        struct column *c = &p->columns[i];
        TRY(kept_map(p->fd, p->local, i, p->half, (size_t)all[c->rank],
                     &c->cells[p->half], err));
    }
    return 0;
}

static int begin(struct peers *p, const struct replica *run, const struct train_state *at,
                 struct ddp_err *err)
{
    struct part head = head_of(p, run, at);
    p->half = (p->half + 1) % KEPT_HALVES;
    struct kept_cell *own = &p->columns[0].cells[p->half];
    if (!own->at)
        TRY(make_room(p, head.bytes, err));
    kept_set_whole(own, false);
    pack(&head, run, p->reducer, own->at + KEPT_HEAD);
    kept_set_whole(own, true);
    for (int i = 1; i < p->ncolumns; i++) {
        struct column *c = &p->columns[i];
        struct kept_cell *cell = &c->cells[p->half];
        kept_set_whole(cell, false);
        c->coming =
            ddp_irecv(p->group, cell->at + KEPT_HEAD, cell->bytes, c->rank, TAG, err);
        if (!c->coming)
            return -1;
    }
    p->sets++;
    if (p->next >= 0)
        p->going =
            ddp_isend(p->group, own->at + KEPT_HEAD, own->bytes, p->next, TAG, err);
    return p->next < 0 || p->going ? 0 : -1;
}

int peers_save(struct peers *p, const struct replica *run, const struct train_state *at,
               struct ddp_err *err)
{
    TRY(peers_finish(p, err));
    int64_t began = now_ns();
    int rc = begin(p, run, at, err);
    p->stalled_ns += now_ns() - began;
    return rc;
}

struct peers_cost peers_cost(const struct peers *p)
{
    struct peers_cost c = {.sets = p->sets,
                           .part = p->columns[0].cells[p->half].bytes,
                           .stalled_s = (double)p->stalled_ns / 1e9,
                           .next = p->next};
    for (int i = 0; i < p->ncolumns; i++)
        c.memory += KEPT_HALVES * p->columns[i].cells[p->half].bytes;
    return c;
}
