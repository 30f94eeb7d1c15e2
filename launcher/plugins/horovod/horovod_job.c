/* launcher/plugins/horovod/horovod_job.c - Horovod's elastic mode (--elastic horovod)
 *
 * Ranks of hvd.elastic.run keep the state of the program in memory. When a rank has died,
 * the others get an error, go back to their last commit, and ask the store for their
 * place in the next world. When all that are left have asked, they get it, and the ranks
 * that are missing are started. Hosts that were added get ranks in that world too, and
 * the ranks of hosts that are not to be used any more get no place; if only hosts have
 * changed, rank 0 is told, and all ask (notify.h). What no rank survives is a failed
 * attempt, as without this mode. doc/elastic.md; the requests:
 * rendezvous/protocol/http.h.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/plugin.h"
#include "launcher/plugins/plugins.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/plugins/horovod/notify.h"
#include "launcher/plugins/horovod/world.h"
#include "launcher/transport/program.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A rank that waits for data of another one may not notice that this one has left their
 * world, and Horovod then gives up only after this many seconds; its default is 30. The
 * waits for ranks that start are not limited by it (rendezvous/server/conn.c). */
#define GLOO_TIMEOUT   "HOROVOD_GLOO_TIMEOUT_SECONDS"
#define GLOO_TIMEOUT_S "10"

/* ms: changes of hosts within this time make one new world */
enum { TOGETHER_MS = 2000 };

enum slot_state {
    SLOT_STARTS, /* not yet in hvd.elastic.run */
    SLOT_JOINS,  /* has its place in the next world, and is not connected to all in it */
    SLOT_RUNS,
    SLOT_ASKS,    /* waits for its place in the next world */
    SLOT_MISSING, /* has failed, or is new; it is started in the next world */
    SLOT_ENDED,   /* has exited with status 0 */
    SLOT_GONE,    /* is ended, as its host is not to be used, or is lost */
    SLOT_STATES
};

/* One per rank of the plan. */
struct slot {
    enum slot_state state;
    struct place place;
    bool due;              /* it is started when the store has the new world */
    bool found, connected; /* in its world: the others can find it; it has found all */
    struct notify_service service;
};

struct horovod {
    struct job *j;      /* borrowed */
    struct slot *slots; /* owned; NULL before the first message */
    int nslots;
    int counts[SLOT_STATES]; /* slots in each state */
    bool formed;        /* all ranks of the first world have come to hvd.elastic.run */
    bool ending;        /* a rank has exited with status 0 */
    int replaced;       /* ranks, in all attempts */
    int64_t failed_ns;  /* the first failure since the last world; 0: none */
    int64_t changed_ms; /* hosts have changed since the last world; 0: they have not */
    bool told;          /* ... which rank 0 knows */
    uint32_t told_s;    /* the time in the last request to a rank 0 */
    bool resized;       /* the present world has other hosts than the one before */
    int64_t late_ms;    /* the ranks wait for hosts until then; 0: they do not */
};

/* --- slots -------------------------------------------------------------------------- */

static void add_slots(struct horovod *h, enum slot_state state)
{
    const struct plan *p = h->j->plan;
    h->slots = xgrow(h->slots, (size_t)h->nslots, (size_t)p->nranks, sizeof *h->slots);
    for (int r = h->nslots; r < p->nranks; r++)
        h->slots[r] = (struct slot){
            state, {.rank = r, .size = p->nranks, .local_rank = p->ranks[r].local_rank}};
    h->counts[state] += p->nranks - h->nslots;
    h->nslots = p->nranks;
}

static void move(struct horovod *h, struct slot *s, enum slot_state to)
{
    h->counts[s->state]--;
    h->counts[to]++;
    s->state = to;
}

/* Ranks that have the state of the program. */
static int keepers(const struct horovod *h)
{
    return h->counts[SLOT_JOINS] + h->counts[SLOT_RUNS] + h->counts[SLOT_ASKS];
}

static void on_ranks_added(void *state, int first)
{
    add_slots(state, SLOT_GONE);
}

static const char *host_of(const struct horovod *h, int rank)
{
    return h->j->plan->nodes[h->j->plan->ranks[rank].node].host->name;
}

/* "HOST:LOCAL_RANK", as the rank has it from its last world. */
static struct slot *find_slot(struct horovod *h, const char *id)
{
    const struct plan *p = h->j->plan;
    const char *colon = strrchr(id, ':');
    size_t n = colon ? (size_t)(colon - id) : 0;
    for (int k = 0; colon && k < p->nnodes; k++) {
        const char *host = p->nodes[k].host->name;
        bool here = strlen(host) == n && strncmp(id, host, n) == 0;
        for (int i = 0; here && i < p->nodes[k].nlocal; i++) {
            struct slot *s = &h->slots[p->nodes[k].ranks[i]];
            if (s->state < SLOT_MISSING && s->place.local_rank == atoi(colon + 1))
                return s;
        }
    }
    return NULL;
}

/* --- the next world ----------------------------------------------------------------- */

static void elastic_env(const struct horovod *h, struct strv *env)
{
    strv_push(env, "HOROVOD_ELASTIC=1");
    if (!getenv(GLOO_TIMEOUT) && !strv_env_get(&h->j->job.env, GLOO_TIMEOUT))
        strv_push(env, GLOO_TIMEOUT "=" GLOO_TIMEOUT_S);
}

static void start(struct horovod *h, int rank)
{
    struct strv env = {0};
    elastic_env(h, &env);
    place_env(&h->slots[rank].place, &env);
    job_start_rank(h->j, (uint32_t)rank, &env);
}

/* The ranks of the next world; those of a new node all at once. */
static void start_due(struct horovod *h)
{
    for (int r = 0; r < h->nslots; r++) {
        if (!h->slots[r].due)
            continue;
        long node = job_node_at(h->j, h->j->plan->ranks[r].node);
        const struct plan_node *pn = &h->j->plan->nodes[h->j->plan->ranks[r].node];
        bool runs = node >= 0 && job_node_runs(h->j, (unsigned)node);
        h->slots[r].due = false;
        if (runs) {
            start(h, r);
            continue;
        }
        for (int i = 0; i < pn->nlocal; i++)
            h->slots[pn->ranks[i]].due = false;
        if (node >= 0)
            job_start_node(h->j, (unsigned)node);
    }
}

static void set_gone(struct horovod *h, int place)
{
    const struct plan_node *pn = &h->j->plan->nodes[place];
    for (int i = 0; i < pn->nlocal; i++)
        move(h, &h->slots[pn->ranks[i]], SLOT_GONE);
}

static bool is_gone(const struct horovod *h, int place)
{
    return h->slots[h->j->plan->nodes[place].ranks[0]].state == SLOT_GONE;
}

/* It has no process, but a host that can be used. */
static bool may_return(const struct horovod *h, int rank)
{
    long node = job_node_at(h->j, h->j->plan->ranks[rank].node);
    return h->slots[rank].state == SLOT_GONE && node >= 0 &&
           job_node_usable(&h->j->nodes[node]) && !job_node_runs(h->j, (unsigned)node) &&
           !job_node_resized(h->j, (unsigned)node);
}

/* Its ranks get no place in the next world. With another number of slots it gets others
 * in the one after that. */
static bool is_dropped(const struct horovod *h, unsigned node)
{
    return (h->j->nodes[node].leaving && job_can_drop(h->j)) ||
           job_node_resized(h->j, node);
}

/* Are there ranks on hosts that leave, and would the state of the program remain? */
static bool may_drop(const struct horovod *h)
{
    bool leave = false, keep = false;
    for (int r = 0; r < h->nslots; r++) {
        enum slot_state state = h->slots[r].state;
        long node = job_node_at(h->j, h->j->plan->ranks[r].node);
        bool dropped = node >= 0 && is_dropped(h, (unsigned)node);
        leave |= state != SLOT_GONE && dropped;
        keep |= state >= SLOT_JOINS && state <= SLOT_ASKS && node >= 0 && !dropped;
    }
    return leave && keep;
}

/* Hosts that have joined take part in the next world, those that leave do not: their
 * ranks, which wait for their places, are ended. */
static void take_hosts(struct horovod *h)
{
    struct job *j = h->j;
    bool leave = may_drop(h);
    job_add_nodes(j);
    for (int r = 0; r < h->nslots; r++) {
        if (may_return(h, r))
            move(h, &h->slots[r], SLOT_MISSING);
    }
    for (unsigned i = 0; leave && i < j->alloc->nnodes; i++) {
        int place = j->nodes[i].place;
        if (place < 0 || is_gone(h, place) || !is_dropped(h, i))
            continue;
        set_gone(h, place);
        job_end_node(j, i);
    }
    h->resized |= h->changed_ms > 0;
    h->changed_ms = 0;
    h->told = false;
}

static struct member *collect(const struct horovod *h, int *n)
{
    const struct plan *p = h->j->plan;
    struct member *m = xcalloc((size_t)h->nslots, sizeof *m);
    *n = 0;
    for (int r = 0; r < h->nslots; r++) {
        const struct slot *s = &h->slots[r];
        if (s->state == SLOT_ASKS || s->state == SLOT_MISSING)
            m[(*n)++] = (struct member){.id = r,
                                        .node = p->ranks[r].node,
                                        .local_rank = p->ranks[r].local_rank,
                                        .keeps = s->state == SLOT_ASKS,
                                        .place = s->place};
    }
    return m;
}

static void say_formed(struct horovod *h, int ranks)
{
    if (h->failed_ns == 0 && !h->resized)
        return;
    char *line =
        h->failed_ns == 0
            ? xasprintf("ddprun: Horovod's ring has %d ranks now", ranks)
            : xasprintf("ddprun: Horovod's ring has %d ranks again, %.2f s after "
                        "the failure",
                        ranks, (double)(now_ns() - h->failed_ns) / 1e9);
    h->failed_ns = 0;
    h->resized = false;
    job_say(h->j, line);
    free(line);
}

static void form(struct horovod *h)
{
    struct msg_places places = {0};
    int n;
    take_hosts(h);
    struct member *m = collect(h, &n);
    world_form(m, n);
    for (int i = 0; i < n; i++) {
        struct slot *s = &h->slots[m[i].id];
        s->due = s->state == SLOT_MISSING;
        if (!s->due) {
            strv_pushf(&places.keys, "rank_and_size/%s:%d", host_of(h, m[i].id),
                       s->place.local_rank);
            strv_push_nodup(&places.values, place_text(&m[i].place));
        }
        move(h, s, s->due ? SLOT_STARTS : SLOT_JOINS);
        s->place = m[i].place;
        s->found = s->connected = false;
        log_info("rank %d is Horovod's rank %d of %d", m[i].id, s->place.rank, n);
    }
    job_send(h->j, job_store_node(h->j), MSG_PLACES, &places);
    strv_finish(&places.keys);
    strv_finish(&places.values);
    free(m);
}

/* A rank that is missing cannot be replaced when others have ended. */
static void fail_missing(struct horovod *h)
{
    int r = 0;
    while (h->slots[r].state != SLOT_MISSING)
        r++;
    job_fail_rank(h->j, r);
}

/* The ranks that are left wait, with their state, while there are too few hosts. */
static bool waits_for_hosts(struct horovod *h)
{
    const struct opts *o = h->j->opts;
    if (o->min_nnodes == 0 || o->node_wait_ms == 0 || job_has_enough(h->j)) {
        h->late_ms = 0;
    } else if (h->late_ms == 0) {
        char *line = xasprintf("ddprun: too few hosts are left; the ranks wait up to "
                               "%.4g s for another one (--node-wait)",
                               (double)o->node_wait_ms / 1e3);
        h->late_ms = now_ms() + o->node_wait_ms;
        job_say(h->j, line);
        free(line);
    } else if (now_ms() >= h->late_ms) {
        h->late_ms = 0;
        job_fail_text(h->j, CAUSE_CANNOT, EXIT_CANNOT_START,
                      xasprintf("no host has come in the place of the lost one within "
                                "%.4g s (--node-wait)",
                                (double)o->node_wait_ms / 1e3));
        return true;
    }
    return h->late_ms > 0;
}

/* Has every rank that is left asked for its place, and are there enough hosts? */
static void check(struct horovod *h)
{
    if (h->j->state != JOB_RUNNING)
        return;
    if (h->ending && h->counts[SLOT_MISSING] > 0)
        fail_missing(h);
    else if (h->counts[SLOT_ASKS] > 0 &&
             h->counts[SLOT_STARTS] + h->counts[SLOT_JOINS] + h->counts[SLOT_RUNS] == 0 &&
             !waits_for_hosts(h))
        form(h);
}

/* A rank has come to hvd.elastic.run, or has connected to all others of its world. */
static void joined(struct horovod *h, struct slot *s)
{
    if (s->state < SLOT_RUNS)
        move(h, s, SLOT_RUNS);
    if (h->counts[SLOT_STARTS] + h->counts[SLOT_JOINS] + h->counts[SLOT_MISSING] > 0)
        return;
    h->formed = true;
    say_formed(h, keepers(h));
}

/* How far a rank has joined its world: "global/RANK" (its address is known), or
 * "cross_LOCAL_RANK/CROSS_RANK". */
static void handle_world_key(struct horovod *h, const char *key)
{
    int a, b;
    bool connected = sscanf(key, "cross_%d/%d", &a, &b) == 2;
    if (!connected && sscanf(key, "global/%d", &a) != 1)
        return;
    for (int r = 0; r < h->nslots; r++) {
        struct slot *s = &h->slots[r];
        const struct place *p = &s->place;
        if (s->state > SLOT_JOINS ||
            (connected ? p->local_rank != a || p->cross_rank != b : p->rank != a))
            continue;
        s->found = true;
        s->connected |= connected;
        if (connected && s->state == SLOT_JOINS)
            joined(h, s);
        return;
    }
}

/* "rank_and_size/HOST:LOCAL_RANK": it waits for its place in the next world. */
static void asks(struct horovod *h, const char *id)
{
    struct slot *s = find_slot(h, id);
    if (!s)
        return;
    move(h, s, SLOT_ASKS);
    check(h);
}

/* "worker_addresses/HOST:LOCAL_RANK" */
static void has_address(struct horovod *h, const char *id, const char *value)
{
    struct slot *s = find_slot(h, id);
    if (!s)
        return;
    if (value && !notify_read(value, &s->service))
        log_warn("rank %d has a notification service of another Horovod: changes of "
                 "hosts have to wait for a failure",
                 (int)(s - h->slots));
    joined(h, s);
}

/* The store has the new world, or a rank has sent it a request. */
static int handle_asked(void *state, unsigned node, const struct frame *f,
                        struct ddp_err *err)
{
    static const char place[] = "rank_and_size/", address[] = "worker_addresses/";
    struct horovod *h = state;
    const struct msg_asked *m = f->m;
    if (h->j->state != JOB_RUNNING)
        return 0;
    if (!h->slots)
        add_slots(h, SLOT_STARTS);
    if (!m->key) {
        start_due(h);
        return 0;
    }
    if (strncmp(m->key, place, sizeof place - 1) == 0)
        asks(h, m->key + sizeof place - 1);
    else if (strncmp(m->key, address, sizeof address - 1) == 0)
        has_address(h, m->key + sizeof address - 1, m->value);
    else
        handle_world_key(h, m->key);
    return 0;
}

/* --- ranks -------------------------------------------------------------------------- */

static void on_rank_env(void *state, uint32_t rank, struct strv *env)
{
    const struct horovod *h = state;
    elastic_env(h, env);
    if (h->slots)
        place_env(&h->slots[rank].place, env);
}

static void on_rank_exited(void *state, uint32_t rank)
{
    struct horovod *h = state;
    if (!h->slots || h->slots[rank].state >= SLOT_GONE || h->j->ranks[rank].status != 0)
        return;
    move(h, &h->slots[rank], SLOT_ENDED);
    h->ending = true;
    check(h);
}

static void say_replaced(struct horovod *h, int rank)
{
    const struct cause c = {.kind = CAUSE_EXIT, .status = h->j->ranks[rank].status};
    char *how = cause_of_death(&c);
    char *line =
        xasprintf("ddprun: rank %d on %s %s; the others keep running, and it is "
                  "started again (%d of %d)",
                  rank, host_of(h, rank), how, h->replaced, h->j->opts->max_restarts);
    job_say(h->j, line);
    free(line);
    free(how);
}

/* Its world is being formed, and the others wait for it, as they have not found it yet:
 * another process can take its place there, but not that of rank 0, which has the state.
 */
static bool can_replace_early(const struct slot *s)
{
    return !s->found && (s->state == SLOT_STARTS || s->place.rank != 0);
}

static bool on_rank_failed(void *state, uint32_t rank)
{
    struct horovod *h = state;
    if (h->slots && h->slots[rank].state >= SLOT_GONE)
        return true;
    if (!h->formed || h->ending || h->replaced >= h->j->opts->max_restarts)
        return false;
    struct slot *s = &h->slots[rank];
    bool early = s->state <= SLOT_JOINS && !s->connected;
    if (early && !can_replace_early(s))
        return false; /* Horovod ends the others, which may take it a minute */
    move(h, s, SLOT_MISSING);
    if (keepers(h) == 0)
        return false; /* the state is lost */
    h->replaced++;
    if (h->failed_ns == 0)
        h->failed_ns = h->j->ranks[rank].at_ns;
    say_replaced(h, (int)rank);
    if (early) {
        move(h, s, SLOT_STARTS);
        start(h, (int)rank);
    } else {
        check(h);
    }
    return true;
}

static void on_next_attempt(void *state)
{
    struct horovod *h = state;
    free(h->slots);
    h->slots = NULL;
    h->nslots = 0;
    memset(h->counts, 0, sizeof h->counts);
    for (size_t i = 0; i < h->j->alloc->nnodes; i++)
        h->j->nodes[i].resized = false;
    h->formed = h->ending = h->told = h->resized = false;
    h->failed_ns = h->changed_ms = h->late_ms = 0;
}

/* --- hosts -------------------------------------------------------------------------- */

static void notify(struct horovod *h)
{
    unsigned char request[NOTIFY_MOST];
    int r = 0;
    while (r < h->nslots &&
           (h->slots[r].state != SLOT_RUNS || h->slots[r].place.rank != 0))
        r++;
    if (r == h->nslots || h->slots[r].service.port == 0)
        return; /* the next world is being formed, or there is no service */
    uint32_t now_s = (uint32_t)time(NULL);
    h->told_s = now_s > h->told_s ? now_s : h->told_s + 1;
    size_t size = notify_request(&h->slots[r].service, h->told_s, request);
    long node = job_node_at(h->j, h->j->plan->ranks[r].node);
    job_send(h->j, (unsigned)node,
             MSG(notify, .port = h->slots[r].service.port, .data = request,
                 .ndata = (uint32_t)size));
    h->told = true;
    log_info("rank %d, Horovod's rank 0, is told that hosts have changed", r);
}

/* Would the next world have other hosts? */
static bool hosts_differ(const struct horovod *h)
{
    bool differ = job_can_add(h->j) || may_drop(h);
    for (int r = 0; r < h->nslots; r++)
        differ |= may_return(h, r);
    return differ;
}

/* The agents of those that leave do so too, but that of the store stays, without ranks.
 */
static void release_nodes(struct horovod *h)
{
    for (unsigned i = 0; i < h->j->alloc->nnodes; i++) {
        const struct job_node *n = &h->j->nodes[i];
        if (n->place >= 0 && n->ended && is_gone(h, n->place) &&
            ((n->leaving && n->place > 0) || job_node_resized(h->j, i)))
            job_node_vacate(h->j, i);
    }
}

static bool on_node_claimed(void *state, unsigned node, const char *why)
{
    struct horovod *h = state;
    struct job *j = h->j;
    int place = j->nodes[node].place;
    if (!h->formed || node == job_store_node(j))
        return false;
    bool gone = is_gone(h, place);
    if (!gone &&
        (h->ending || h->counts[SLOT_STARTS] + h->counts[SLOT_JOINS] > 0 ||
         j->opts->min_nnodes == 0 || (j->opts->node_wait_ms == 0 && !job_has_enough(j))))
        return false;
    set_gone(h, place);
    if (keepers(h) == 0)
        return false; /* the state is lost */
    job_node_vacate(j, node);
    if (gone)
        return true;
    char *line =
        xasprintf("ddprun: %s is lost: %s; the ranks of other hosts keep running",
                  j->nodes[node].host->name, why);
    job_say(j, line);
    free(line);
    if (h->failed_ns == 0)
        h->failed_ns = now_ns();
    check(h);
    return true;
}

static void on_tick(void *state)
{
    struct horovod *h = state;
    if (h->j->state != JOB_RUNNING || !h->formed || h->ending)
        return;
    release_nodes(h);
    if (h->late_ms > 0)
        check(h);
    if (!hosts_differ(h))
        h->changed_ms = 0;
    else if (h->changed_ms == 0)
        h->changed_ms = now_ms();
    else if (!h->told && now_ms() - h->changed_ms >= TOGETHER_MS)
        notify(h);
}

/* --- life --------------------------------------------------------------------------- */

static int on_init(struct job *j, void **state, struct ddp_err *err)
{
    if (j->opts->elastic != ELASTIC_HOROVOD || j->instead)
        return 0;
    if (j->opts->store != STORE_LAUNCHER)
        return err_set(err, "--elastic horovod needs the store of ddprun: leave out "
                            "--store rank0");
    if (j->opts->max_restarts == 0)
        return err_set(err, "--elastic horovod goes with --max-restarts N: so many ranks "
                            "that fail are started again");
    struct horovod *h = xcalloc(1, sizeof *h);
    h->j = j;
    *state = h;
    return 0;
}

static void on_fini(void *state)
{
    struct horovod *h = state;
    free(h->slots);
    free(h);
}

static const struct job_message messages[] = {{MSG_ASKED, handle_asked}, {0}};

const struct job_plugin horovod_job = {
    .name = "horovod",
    .init = on_init,
    .fini = on_fini,
    .rank_exited = on_rank_exited,
    .rank_failed = on_rank_failed,
    .rank_env = on_rank_env,
    .ranks_added = on_ranks_added,
    .node_claimed = on_node_claimed,
    .tick = on_tick,
    .next_attempt = on_next_attempt,
    .messages = messages,
};
