/* launcher/plugins/diagnose/straggler_job.c - --stragglers, on the launcher's side
 *
 * The agents are asked when their ranks have entered the last collectives, every second
 * or, if a step takes longer, every few steps; lateness.c decides. Before a straggler is
 * reported its agent measures what else runs on its CPUs. If all ranks of its host are
 * stragglers the reason is the host's, and they are reported as one.
 */
#include "launcher/job/plugin.h"
#include "launcher/plugins/plugins.h"

#include "common/duration.h"
#include "common/idset.h"
#include "common/json.h"
#include "common/mem.h"
#include "launcher/job/events.h"
#include "launcher/plugins/diagnose/lateness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ms between questions: at least and at most, and while a rank is suspected; how long an
 * answer may take; how long a rank must be in time before it is reported again */
enum { LEAST_MS = 1000, MOST_MS = 10000, SUSPECT_MS = 250 };
/* after so many questions without a suspicion: an answer takes 1 ms of a PyTorch rank */
enum { CALM = 20, CALM_MS = 2000 };
enum { LIMIT_MS = 5000, AGAIN_MS = 60000 };
/* Where CPUs are contended a rank has to be found for so long, without such a pause. */
enum { CONTENDED_MS = 20000, CONTENDED_PAUSE_MS = 5000 };
/* what a line mentions: percent of the host's CPU time, faults per second */
enum { STOLEN_LEAST = 5, FAULTS_LEAST = 20 };
enum { WRONG_NS = 1000000 }; /* a clock: earlier times are of no use */
/* new collectives in an answer; quick questions in a row */
enum { FEW = 4, MANY = 12, QUICK_MAX = 12 };

struct straggler_job {
    struct job *j;             /* borrowed */
    struct lateness *lateness; /* owned; NULL: no attempt runs */
    struct event *timer;       /* owned: the next question */
    struct event *limit;       /* owned: of answers about surroundings */
    uint32_t id;               /* of the last question */
    unsigned left;             /* nodes that have not answered it */
    int64_t interval_ms;
    int64_t asked_ns; /* when, on our clock */
    struct clock {
        int64_t ahead_ns; /* its clock minus ours */
        int64_t delay_ns; /* of the messages by which that is known; 0: it is not */
    } * clocks;           /* owned, by node */
    unsigned calm;        /* questions since the last suspicion */
    unsigned quick;       /* questions because of a suspicion, since there was none */
    struct named {
        struct straggler is;
        bool asked;       /* its surroundings; not yet reported */
        int64_t since_ms; /* it was found without a pause since, */
        int64_t late_ms;  /* and last then; 0: never */
        int64_t asked_ms; /* when */
    } * ranks;            /* owned, by rank; NULL: no attempt yet */
};

/* --- a straggler -------------------------------------------------------------------- */

static void print_beside(const json_t *beside, FILE *f)
{
    const json_t *top = json_object_get(beside, "top"),
                 *rank = json_object_get(top, "rank");
    if (!beside)
        return;
    fprintf(f,
            "; CPUs %s, load %.1f: it runs %lld %% and waits for a CPU %lld %% of the "
            "time",
            text_of(beside, "cpus"), number_of(beside, "load"),
            int_of(beside, "cpu_percent"), int_of(beside, "waits_percent"));
    json_int_t stolen = int_of(beside, "stolen_percent"),
               faults = int_of(beside, "faults_per_s");
    if (stolen >= STOLEN_LEAST)
        fprintf(f, "; the hypervisor takes %lld %% of the host's CPU time", stolen);
    if (faults >= FAULTS_LEAST)
        fprintf(f, "; it waits for %lld pages per second from disk (major faults)",
                faults);
    if (!top)
        return;
    fputs("; beside it ", f);
    if (rank)
        fprintf(f, "rank %lld", json_integer_value(rank));
    else
        fprintf(f, "'%.60s' (pid %lld)", text_of(top, "program"), int_of(top, "pid"));
    fprintf(f, " uses %lld %%", int_of(top, "cpu_percent"));
}

static json_t *member(const json_t *o, const char *name)
{
    json_t *value = json_object_get(o, name);
    return value ? json_incref(value) : json_null();
}

static bool is_late(const struct straggler_job *s, int rank)
{
    const struct named *named = &s->ranks[rank];
    return named->late_ms && now_ms() - named->late_ms <= CONTENDED_PAUSE_MS;
}

/* The ranks of its host if all are stragglers, else `rank` alone. */
static struct idset late_with(const struct straggler_job *s, int rank)
{
    const struct plan *plan = s->j->plan;
    struct idset all = {0}, one = {0};
    bool together = true;
    for (int r = 0; r < plan->nranks; r++) {
        if (plan->ranks[r].node != plan->ranks[rank].node)
            continue;
        together &= is_late(s, r);
        idset_add(&all, r, r);
    }
    idset_add(&one, rank, rank);
    idset_finish(together ? &one : &all);
    return together ? all : one;
}

static json_t *numbers_of(const struct idset *ranks, int nranks)
{
    json_t *list = json_array();
    for (int r = 0; r < nranks; r++) {
        if (idset_has(ranks, r))
            json_array_append_new(list, json_integer(r));
    }
    return list;
}

static void emit(struct straggler_job *s, const struct straggler *is,
                 const struct idset *ranks, const json_t *beside, const char *text)
{
    const json_t *top = json_object_get(beside, "top");
    event_emit(s->j, "straggler",
               "{s:i, s:o, s:o, s:f, s:i, s:i, s:f, s:f, s:o, s:o, s:o, s:o, s:o, s:o, "
               "s:o, s:o, s:o}",
               "rank", is->rank, "ranks", numbers_of(ranks, s->j->plan->nranks), "host",
               event_text(plan_host(s->j->plan, is->rank)->name), "score", is->share,
               "late", (int)is->late, "rounds", (int)is->rounds, "lag_s",
               (double)is->lag_ns / 1e9, "round_s", (double)is->period_ns / 1e9, "cpus",
               member(beside, "cpus"), "load", member(beside, "load"), "cpu_percent",
               member(beside, "cpu_percent"), "waits_percent",
               member(beside, "waits_percent"), "stolen_percent",
               member(beside, "stolen_percent"), "faults_per_s",
               member(beside, "faults_per_s"), "beside", member(top, "program"),
               "beside_percent", member(top, "cpu_percent"), "text", event_text(text));
}

static void report(struct straggler_job *s, int rank, const json_t *beside)
{
    struct named *named = &s->ranks[rank];
    const struct straggler *is = &named->is;
    OWNED char *line = NULL;
    size_t n;
    FILE *f = xmemstream(&line, &n);
    named->asked = false;
    SCOPED(idset_finish) struct idset ranks = late_with(s, rank);
    fprintf(f, "ddprun: straggler: ");
    if (idset_count(&ranks) > 1) {
        OWNED char *text = idset_text(&ranks);
        fprintf(f, "ranks %s, all on %s, come late: ", text,
                plan_host(s->j->plan, rank)->name);
    }
    fprintf(
        f,
        "rank %d on %s came late to %u of the last %u collectives, by %.3g ms of %.3g "
        "ms: the others wait for it %.0f %% of the time",
        rank, plan_host(s->j->plan, rank)->name, is->late, is->rounds,
        (double)is->lag_ns / 1e6, (double)is->period_ns / 1e6, is->share * 100);
    print_beside(beside, f);
    xmemclose(f);
    emit(s, is, &ranks, beside, line + strlen("ddprun: "));
    job_say(s->j, "%s", line);
    for (int r = 0; r < s->j->plan->nranks; r++)
        s->j->ranks[r].straggles |= idset_has(&ranks, r);
}

/* NULL: its agent has not answered in time. */
static bool is_contended(const struct straggler *is, const json_t *beside)
{
    if (!beside)
        return true;
    struct cpu_share cpus = {is_true(beside, "busy"),
                             (double)int_of(beside, "waits_percent"),
                             number_of(beside, "measured_s")};
    return lateness_contended(is, &cpus);
}

/* Report it, or forget it until it is found again. */
static void consider(struct straggler_job *s, int rank, const json_t *beside)
{
    struct named *named = &s->ranks[rank];
    event_del(s->limit);
    if (is_contended(&named->is, beside) &&
        named->late_ms - named->since_ms < CONTENDED_MS)
        s->j->ranks[rank].straggles = named->asked = false;
    else
        report(s, rank, beside);
}

static int handle_beside(void *state, unsigned node, const struct frame *f,
                         struct ddp_err *err)
{
    struct straggler_job *s = state;
    const struct msg_beside *m = f->m;
    if (!s->lateness || !job_rank_is_of(s->j, m->rank, node) || !s->ranks[m->rank].asked)
        return 0; /* the ranks are stopped, or others have been started */
    json_auto_t *beside = m->text ? json_loads(m->text, 0, NULL) : NULL;
    consider(s, (int)m->rank, json_is_object(beside) ? beside : NULL);
    return 0;
}

static void on_limit(evutil_socket_t fd, short what, void *arg)
{
    struct straggler_job *s = arg;
    for (int r = 0; s->ranks && r < s->j->plan->nranks; r++) {
        if (s->ranks[r].asked)
            consider(s, r, NULL);
    }
}

static void found(struct straggler_job *s, const struct straggler *is)
{
    struct named *named = &s->ranks[is->rank];
    struct job_rank *rank = &s->j->ranks[is->rank];
    int64_t now = now_ms();
    if (named->late_ms == 0 || now - named->late_ms > CONTENDED_PAUSE_MS)
        named->since_ms = now;
    named->late_ms = now;
    if (rank->straggles || rank->exited || event_pending(s->limit, EV_TIMEOUT, NULL) ||
        (named->asked_ms && now - named->asked_ms < CONTENDED_PAUSE_MS))
        return; /* the others are asked for next time */
    rank->straggles = named->asked = true;
    named->asked_ms = now;
    named->is = *is;
    job_send(s->j, (unsigned)(plan_host(s->j->plan, is->rank) - s->j->alloc->nodes),
             MSG(ask, ASK_BESIDE, (uint32_t)is->rank));
    loop_arm(s->limit, LIMIT_MS);
}

/* --- questions ---------------------------------------------------------------------- */

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct straggler_job *s = arg;
    s->asked_ns = now_ns();
    s->left = job_ask(s->j, MSG(ask, ASK_ARRIVALS, ++s->id));
    loop_arm(s->timer, s->interval_ms);
}

/* Few new collectives: steps are long, or nothing happens. */
static void adapt(struct straggler_job *s, size_t new)
{
    bool known = false;
    for (int r = 0; r < s->j->plan->nranks && !known; r++)
        known = lateness_entered(s->lateness, r) > 0;
    if (known && new < FEW)
        s->interval_ms *= 2;
    else if (new > MANY)
        s->interval_ms /= 2;
    int64_t least_ms = s->calm > CALM ? CALM_MS : LEAST_MS;
    s->interval_ms = s->interval_ms < least_ms  ? least_ms
                     : s->interval_ms > MOST_MS ? MOST_MS
                                                : s->interval_ms;
}

static void examine(struct straggler_job *s)
{
    OWNED struct straggler *list = NULL;
    size_t n;
    adapt(s, lateness_examine(s->lateness, &list, &n));
    for (size_t i = 0; i < n; i++)
        found(s, &list[i]);
    bool suspects = lateness_suspects(s->lateness);
    s->calm = suspects ? 0 : s->calm + 1;
    s->quick = suspects ? s->quick + 1 : 0;
    if (suspects && n == 0 && s->quick <= QUICK_MAX && s->interval_ms <= CALM_MS)
        loop_arm(s->timer, SUSPECT_MS);
    for (int r = 0; r < s->j->plan->nranks; r++) {
        struct job_rank *rank = &s->j->ranks[r];
        rank->collectives = lateness_entered(s->lateness, r);
        rank->lag_ns = lateness_lag_ns(s->lateness, r);
        if (rank->straggles && now_ms() - s->ranks[r].late_ms > AGAIN_MS)
            rank->straggles = false;
    }
}

/* As NTP does: the messages with the shortest delay on their way tell most. Returns by
 * how much the clock was wrong. */
static int64_t compare_clock(struct straggler_job *s, struct clock *c,
                             const struct msg_arrivals *m)
{
    int64_t got_ns = now_ns(), before_ns = c->ahead_ns;
    int64_t delay_ns = got_ns - s->asked_ns - (m->sent_ns - m->asked_ns);
    if (delay_ns < 1)
        delay_ns = 1;
    if (c->delay_ns > 0 && delay_ns >= c->delay_ns)
        return 0;
    c->ahead_ns = (m->asked_ns - s->asked_ns + (m->sent_ns - got_ns)) / 2;
    int64_t wrong_ns = c->delay_ns ? c->ahead_ns - before_ns : 0;
    c->delay_ns = delay_ns;
    return wrong_ns < 0 ? -wrong_ns : wrong_ns;
}

static int handle_arrivals(void *state, unsigned node, const struct frame *f,
                           struct ddp_err *err)
{
    struct straggler_job *s = state;
    const struct msg_arrivals *m = f->m;
    if (!s->lateness || m->id != s->id || s->left == 0 || s->j->nodes[node].place < 0)
        return 0; /* too late, or a spare */
    struct clock *c = &s->clocks[node];
    if (compare_clock(s, c, m) > WRONG_NS)
        lateness_forget(s->lateness);
    for (uint32_t i = 0; i < m->n; i++) {
        const struct call_arrival *a = &m->list[i];
        if (!job_rank_is_of(s->j, a->rank, node))
            continue;
        lateness_clock(s->lateness, (int)a->rank, (int)node, c->delay_ns / 2);
        int64_t at_ns; /* on our clock */
        if (!__builtin_sub_overflow(a->at_ns, c->ahead_ns, &at_ns))
            lateness_add(s->lateness, (int)a->rank, a->group, a->number, at_ns);
    }
    if (--s->left == 0)
        examine(s);
    return 0;
}

/* --- life --------------------------------------------------------------------------- */

static void forget(void *state)
{
    struct straggler_job *s = state;
    if (s->timer)
        event_del(s->timer);
    if (s->limit)
        event_del(s->limit);
    lateness_destroy(s->lateness);
    s->lateness = NULL;
}

static void straggler_ranks_started(void *state)
{
    struct straggler_job *s = state;
    size_t n = (size_t)s->j->plan->nranks;
    forget(s);
    free(s->ranks);
    s->ranks = xcalloc(n, sizeof *s->ranks);
    s->lateness =
        lateness_create(s->j->plan->nranks, (double)s->j->opts->stragglers / 100);
    free(s->clocks);
    s->clocks = xcalloc(s->j->alloc->nnodes, sizeof *s->clocks);
    s->interval_ms = LEAST_MS;
    loop_arm(s->timer, LEAST_MS);
}

static void straggler_ranks_added(void *state, int first)
{
    straggler_ranks_started(state);
}

static int straggler_init(void *state, struct ddp_err *err)
{
    return ((const struct straggler_job *)state)->j->opts->stragglers == 0;
}

static int straggler_open(void *state, struct ddp_err *err)
{
    struct straggler_job *s = state;
    s->timer = loop_timer(s->j->loop, on_timer, s);
    s->limit = loop_timer(s->j->loop, on_limit, s);
    return 0;
}

static void straggler_fini(void *state)
{
    struct straggler_job *s = state;
    forget(s);
    loop_free(s->timer);
    loop_free(s->limit);
    free(s->ranks);
    free(s->clocks);
}

static const struct job_message messages[] = {
    {MSG_ARRIVALS, handle_arrivals}, {MSG_BESIDE, handle_beside}, {0}};

const struct job_plugin straggler_job = {
    .name = "straggler",
    .state_size = sizeof(struct straggler_job),
    .init = straggler_init,
    .open = straggler_open,
    .fini = straggler_fini,
    .ranks_started = straggler_ranks_started,
    .ranks_added = straggler_ranks_added,
    .shutdown = forget,
    .messages = messages,
};
