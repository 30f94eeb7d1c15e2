/* launcher/plugins/horovod/horovod_job.c - Horovod's elastic mode (--elastic horovod)
 *
 * Ranks of hvd.elastic.run keep the state of the program in memory. When a rank has died,
 * the others get an error, go back to their last commit, and ask the store for their
 * place in the next world. When all that are left have asked, they get it, and the ranks
 * that are missing are started. What no rank survives is a failed attempt, as without
 * this mode. doc/elastic.md; the requests: rendezvous/protocol/http.h.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/plugin.h"
#include "launcher/plugins/plugins.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/plugins/horovod/world.h"

#include <stdlib.h>
#include <string.h>

/* A rank that waits for data of another one may not notice that this one has left their
 * world, and Horovod then gives up only after this many seconds; its default is 30. The
 * waits for ranks that start are not limited by it (rendezvous/server/conn.c). */
#define GLOO_TIMEOUT   "HOROVOD_GLOO_TIMEOUT_SECONDS"
#define GLOO_TIMEOUT_S "10"

enum slot_state {
    SLOT_STARTS, /* not yet in hvd.elastic.run */
    SLOT_RUNS,
    SLOT_ASKS,    /* waits for its place in the next world */
    SLOT_MISSING, /* has failed; it is started in the next world */
    SLOT_ENDED    /* has exited with status 0 */
};

/* One per rank of the plan. */
struct slot {
    enum slot_state state;
    struct place place;
    bool due; /* it is started when the store has the new world */
};

struct horovod {
    struct job *j;      /* borrowed */
    struct slot *slots; /* owned; NULL before the first message */
    int nslots;
    bool formed;       /* all ranks of the first world have come to hvd.elastic.run */
    bool ending;       /* a rank has exited with status 0 */
    int replaced;      /* ranks, in all attempts */
    int64_t failed_ns; /* the first failure since the last world; 0: none */
};

/* --- slots -------------------------------------------------------------------------- */

static void make_slots(struct horovod *h)
{
    const struct plan *p = h->j->plan;
    if (h->slots)
        return;
    h->nslots = p->nranks;
    h->slots = xcalloc((size_t)h->nslots, sizeof *h->slots);
    for (int r = 0; r < h->nslots; r++)
        h->slots[r].place = (struct place){
            .rank = r, .size = h->nslots, .local_rank = p->ranks[r].local_rank};
}

static const char *host_of(const struct horovod *h, int rank)
{
    return h->j->plan->nodes[h->j->plan->ranks[rank].node].host->name;
}

/* "HOST:LOCAL_RANK", as the rank has it from its last world. */
static struct slot *find_slot(struct horovod *h, const char *id)
{
    const char *colon = strrchr(id, ':');
    int local = colon ? atoi(colon + 1) : -1;
    for (int r = 0; r < h->nslots; r++) {
        const char *host = host_of(h, r);
        if (h->slots[r].state < SLOT_MISSING && h->slots[r].place.local_rank == local &&
            strlen(host) == (size_t)(colon - id) && strncmp(id, host, strlen(host)) == 0)
            return &h->slots[r];
    }
    return NULL;
}

static int count(const struct horovod *h, enum slot_state state)
{
    int n = 0;
    for (int r = 0; r < h->nslots; r++)
        n += h->slots[r].state == state;
    return n;
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

static struct member *collect(const struct horovod *h, int *slots, int *n)
{
    const struct plan *p = h->j->plan;
    struct member *m = xcalloc((size_t)h->nslots, sizeof *m);
    *n = 0;
    for (int r = 0; r < h->nslots; r++) {
        const struct slot *s = &h->slots[r];
        if (s->state != SLOT_ASKS && s->state != SLOT_MISSING)
            continue;
        slots[*n] = r;
        m[(*n)++] = (struct member){.node = p->ranks[r].node,
                                    .seat = p->ranks[r].local_rank,
                                    .keeps = s->state == SLOT_ASKS,
                                    .place = s->place};
    }
    return m;
}

static void form(struct horovod *h)
{
    struct msg_places places = {0};
    int n, *slots = xcalloc((size_t)h->nslots, sizeof *slots);
    struct member *m = collect(h, slots, &n);
    world_form(m, n);
    for (int i = 0; i < n; i++) {
        struct slot *s = &h->slots[slots[i]];
        s->due = s->state == SLOT_MISSING;
        if (!s->due) {
            strv_pushf(&places.keys, "rank_and_size/%s:%d", host_of(h, slots[i]),
                       s->place.local_rank);
            strv_push_nodup(&places.values, place_text(&m[i].place));
        }
        s->state = s->due ? SLOT_STARTS : SLOT_RUNS;
        s->place = m[i].place;
        log_info("rank %d is Horovod's rank %d of %d", slots[i], s->place.rank, n);
    }
    unsigned master = (unsigned)(h->j->plan->nodes[0].host - h->j->alloc->nodes);
    job_send(h->j, master, MSG_PLACES, &places);
    strv_finish(&places.keys);
    strv_finish(&places.values);
    free(m);
    free(slots);
}

/* A rank that is missing cannot be replaced when others have ended. */
static void fail_missing(struct horovod *h)
{
    int r = 0;
    while (h->slots[r].state != SLOT_MISSING)
        r++;
    const struct job_rank *jr = &h->j->ranks[r];
    job_fail(h->j, (struct cause){.kind = CAUSE_EXIT,
                                  .rank = r,
                                  .status = jr->status,
                                  .code = cause_exit_code(jr->status),
                                  .at_ns = jr->at_ns});
}

/* Has every rank that is left asked for its place? */
static void check(struct horovod *h)
{
    int missing = count(h, SLOT_MISSING);
    if (h->j->state != JOB_RUNNING)
        return;
    if (h->ending && missing > 0)
        fail_missing(h);
    else if (count(h, SLOT_ASKS) > 0 && count(h, SLOT_STARTS) + count(h, SLOT_RUNS) == 0)
        form(h);
}

/* A rank has come to hvd.elastic.run. */
static void joined(struct horovod *h, struct slot *s)
{
    if (s->state == SLOT_STARTS)
        s->state = SLOT_RUNS;
    if (count(h, SLOT_STARTS) > 0 || count(h, SLOT_MISSING) > 0)
        return;
    h->formed = true;
    if (h->failed_ns == 0)
        return;
    char *line = xasprintf("ddprun: Horovod's ring has %d ranks again, %.2f s after the "
                           "failure",
                           count(h, SLOT_RUNS) + count(h, SLOT_ASKS),
                           (double)(now_ns() - h->failed_ns) / 1e9);
    h->failed_ns = 0;
    job_say(h->j, line);
    free(line);
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
    make_slots(h);
    for (int r = 0; !m->key && r < h->nslots; r++) {
        if (h->slots[r].due)
            start(h, r);
        h->slots[r].due = false;
    }
    if (!m->key)
        return 0;
    bool asks = strncmp(m->key, place, sizeof place - 1) == 0;
    struct slot *s =
        find_slot(h, m->key + (asks ? sizeof place - 1 : sizeof address - 1));
    if (s && asks) {
        s->state = SLOT_ASKS;
        check(h);
    } else if (s) {
        joined(h, s);
    }
    return 0;
}

/* --- ranks -------------------------------------------------------------------------- */

static void on_rank_env(void *state, uint32_t rank, struct strv *env)
{
    elastic_env(state, env);
}

static void on_rank_exited(void *state, uint32_t rank)
{
    struct horovod *h = state;
    if (!h->slots || h->j->ranks[rank].status != 0)
        return;
    h->slots[rank].state = SLOT_ENDED;
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

static bool on_rank_failed(void *state, uint32_t rank)
{
    struct horovod *h = state;
    if (!h->formed || h->ending || h->replaced >= h->j->opts->max_restarts)
        return false;
    struct slot *s = &h->slots[rank];
    bool early = s->state == SLOT_STARTS;
    s->state = SLOT_MISSING;
    if (count(h, SLOT_RUNS) + count(h, SLOT_ASKS) == 0)
        return false; /* the state is lost */
    h->replaced++;
    if (h->failed_ns == 0)
        h->failed_ns = h->j->ranks[rank].at_ns;
    say_replaced(h, (int)rank);
    if (early) { /* the others wait for it in the present world */
        s->state = SLOT_STARTS;
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
    h->formed = h->ending = false;
    h->failed_ns = 0;
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
    .next_attempt = on_next_attempt,
    .messages = messages,
};
