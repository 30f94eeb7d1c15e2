/* launcher/plugins/horovod/horovod_job.c - Horovod's elastic mode (--elastic horovod)
 *
 * Ranks of hvd.elastic.run keep the state of the program in memory. When a rank has died,
 * the others get an error, go back to their last commit, and ask the key-value server for
 * their place in the next world. When all that are left have asked, they get
 * it, and the ranks that are missing are started, with the hosts of that moment
 * (hosts.h). What no rank survives is a failed attempt, as without this mode.
 * doc/elastic.md; the requests: rendezvous/protocol/http.h.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/plugin.h"
#include "launcher/plugins/plugins.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/plugins/horovod/hosts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A rank that waits for data of another one may not notice that this one has left their
 * world, and Horovod then gives up only after this many seconds; its default is 30. The
 * waits for ranks that start are not limited by it (rendezvous/server/conn.c). */
#define GLOO_TIMEOUT   "HOROVOD_GLOO_TIMEOUT_SECONDS"
#define GLOO_TIMEOUT_S "10"

static void on_ranks_added(void *state, int first)
{
    slots_add(state, SLOT_GONE);
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
static void start_due(struct horovod *h, bool *due)
{
    for (int r = 0; r < h->nslots; r++) {
        if (!due[r])
            continue;
        long node = job_node_at(h->j, h->j->plan->ranks[r].node);
        const struct plan_node *pn = &h->j->plan->nodes[h->j->plan->ranks[r].node];
        bool runs = node >= 0 && job_node_runs(h->j, (unsigned)node);
        due[r] = false;
        if (runs) {
            start(h, r);
            continue;
        }
        for (int i = 0; i < pn->nlocal; i++)
            due[pn->ranks[i]] = false;
        if (node >= 0)
            job_start_node(h->j, (unsigned)node);
    }
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
    if (h->failed_ns == 0)
        job_say(h->j, "ddprun: Horovod's ring has %d ranks now", ranks);
    else
        job_say(h->j,
                "ddprun: Horovod's ring has %d ranks again, %.2f s after the failure",
                ranks, (double)(now_ns() - h->failed_ns) / 1e9);
    h->failed_ns = 0;
    h->resized = false;
}

static void form(struct horovod *h)
{
    int n;
    hosts_take(h);
    OWNED struct member *m = collect(h, &n);
    OWNED bool *due = xcalloc((size_t)h->nslots, sizeof *due);
    world_form(m, n);
    kv_server_end_world(h->kv);
    for (int i = 0; i < n; i++) {
        struct slot *s = &h->slots[m[i].id];
        due[m[i].id] = s->state == SLOT_MISSING;
        if (!due[m[i].id]) {
            OWNED char *key = xasprintf("rank_and_size/%s:%d", slot_host(h, m[i].id),
                                        s->place.local_rank);
            OWNED char *place = place_text(&m[i].place);
            kv_server_set(h->kv, key, place);
        }
        slot_move(h, s, due[m[i].id] ? SLOT_STARTS : SLOT_JOINS);
        s->place = m[i].place;
        s->found = s->connected = false;
        log_info("rank %d is Horovod's rank %d of %d", m[i].id, s->place.rank, n);
    }
    start_due(h, due);
}

/* A rank that is missing cannot be replaced when others have ended. */
static void fail_missing(struct horovod *h)
{
    int r = 0;
    while (h->slots[r].state != SLOT_MISSING)
        r++;
    job_fail_rank(h->j, r);
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
             !hosts_awaited(h))
        form(h);
}

/* A rank has come to hvd.elastic.run, or has connected to all others of its world. */
static void joined(struct horovod *h, struct slot *s)
{
    if (s->state < SLOT_RUNS)
        slot_move(h, s, SLOT_RUNS);
    if (h->counts[SLOT_STARTS] + h->counts[SLOT_JOINS] + h->counts[SLOT_MISSING] > 0)
        return;
    h->formed = true;
    say_formed(h, slots_keepers(h));
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
    struct slot *s = slots_find(h, id);
    if (!s)
        return;
    slot_move(h, s, SLOT_ASKS);
    check(h);
}

/* "worker_addresses/HOST:LOCAL_RANK" */
static void has_address(struct horovod *h, const char *id, const char *value)
{
    struct slot *s = slots_find(h, id);
    if (!s)
        return;
    if (value && !notify_read(value, &s->service))
        log_warn("rank %d has a notification service of another Horovod: changes of "
                 "hosts have to wait for a failure",
                 (int)(s - h->slots));
    joined(h, s);
}

/* A rank has sent the key-value server a request. */
static void on_asked(const char *k, const char *value, void *state)
{
    static const char place[] = "rank_and_size/", address[] = "worker_addresses/";
    struct horovod *h = state;
    if (h->j->state != JOB_RUNNING)
        return;
    if (!h->slots)
        slots_add(h, SLOT_STARTS);
    if (strncmp(k, place, sizeof place - 1) == 0)
        asks(h, k + sizeof place - 1);
    else if (strncmp(k, address, sizeof address - 1) == 0)
        has_address(h, k + sizeof address - 1, value);
    else
        handle_world_key(h, k);
}

static int handle_forward(void *state, unsigned node, const struct frame *f,
                          struct ddp_err *err)
{
    struct horovod *h = state;
    kv_server_receive(h->kv, node, f->m);
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
    slot_move(h, &h->slots[rank], SLOT_ENDED);
    h->ending = true;
    check(h);
}

static void say_replaced(struct horovod *h, int rank)
{
    const struct cause c = {.kind = CAUSE_EXIT, .status = h->j->ranks[rank].status};
    OWNED char *how = cause_of_death(&c);
    job_say(h->j,
            "ddprun: rank %d on %s %s; the others keep running, and it is "
            "started again (%d of %d)",
            rank, slot_host(h, rank), how, h->replaced, h->j->opts->max_restarts);
}

/* Its world is being formed, and the others wait for it, as they have not found it yet:
 * another process can take its place, but not that of rank 0, which has the state. */
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
    slot_move(h, s, SLOT_MISSING);
    if (slots_keepers(h) == 0)
        return false; /* the state is lost */
    h->replaced++;
    if (h->failed_ns == 0)
        h->failed_ns = h->j->ranks[rank].at_ns;
    say_replaced(h, (int)rank);
    if (early) {
        slot_move(h, s, SLOT_STARTS);
        start(h, (int)rank);
    } else {
        check(h);
    }
    return true;
}

static void on_next_attempt(void *state)
{
    struct horovod *h = state;
    kv_server_renew(h->kv);
    free(h->slots);
    h->slots = NULL;
    h->nslots = 0;
    memset(h->counts, 0, sizeof h->counts);
    h->formed = h->ending = h->resized = false;
    h->failed_ns = h->changed_ms = h->told_ms = h->late_ms = h->kept_slots = 0;
}

/* --- hosts -------------------------------------------------------------------------- */

static void on_node_lost(void *state, unsigned node, const char *why)
{
    const struct horovod *h = state;
    kv_server_forget(h->kv, node);
}

static bool on_node_claimed(void *state, unsigned node, const char *why)
{
    bool claimed = hosts_claim(state, node, why);
    if (claimed)
        check(state);
    return claimed;
}

static void on_tick(void *state)
{
    struct horovod *h = state;
    if (h->j->state != JOB_RUNNING || !h->formed || h->ending)
        return;
    hosts_release(h);
    if (h->late_ms > 0)
        check(h);
    hosts_watch(h);
}

/* --- life --------------------------------------------------------------------------- */

static int on_init(void *state, struct ddp_err *err)
{
    const struct job *j = ((struct horovod *)state)->j;
    if (j->opts->elastic != ELASTIC_HOROVOD || j->instead)
        return 1;
    if (j->opts->store == STORE_RANK0)
        return err_set(err, "--elastic horovod needs the store of ddprun: leave out "
                            "--store rank0");
    if (j->opts->max_restarts == 0)
        return err_set(err, "--elastic horovod needs --max-restarts N: so many ranks "
                            "that fail are started again");
    return 0;
}

static int on_open(void *state, struct ddp_err *err)
{
    struct horovod *h = state;
    h->kv = kv_server_create(h->j, on_asked, h, err);
    return h->kv ? 0 : -1;
}

static void on_fini(void *state)
{
    struct horovod *h = state;
    kv_server_destroy(h->kv);
    free(h->slots);
}

static const struct job_message messages[] = {{MSG_FORWARD, handle_forward}, {0}};

const struct job_plugin horovod_job = {
    .name = "horovod",
    .state_size = sizeof(struct horovod),
    .init = on_init,
    .open = on_open,
    .fini = on_fini,
    .rank_exited = on_rank_exited,
    .rank_failed = on_rank_failed,
    .rank_env = on_rank_env,
    .ranks_added = on_ranks_added,
    .node_lost = on_node_lost,
    .node_claimed = on_node_claimed,
    .tick = on_tick,
    .next_attempt = on_next_attempt,
    .messages = messages,
};
