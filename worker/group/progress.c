/* worker/group/progress.c - the progress engine: advancing, waiting, detecting failures
 *
 * A wait spins first, since the others are mostly a few microseconds away, then sleeps:
 * on a futex for ranks of this host, in poll() for others. Every LOOK_MS it checks
 * whether the ranks it waits for are alive; failure.c has what follows when they are
 * not.
 */
#include "worker/group/group.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/offload.h"
#include "worker/group/backend.h"

#include <poll.h>
#include <string.h>
#include <time.h>

enum {
    LOOK_MS = 100,
    REPORT_MS = 300, /* a wait that a hang report may be about */
    CAUSE_MS = 600,  /* to find the cause of an error of NCCL or MPI */
    SILENT_MS = 150, /* without progress, before our call is reported to others */
    MIXED_MS = 1,    /* between checks of one transport while sleeping on the other */
    POLL_MS = 5,     /* between checks for that cause, and in a foreign call */
    FAMILY_US = 50,  /* between progress calls when several groups are busy */
    RECHECK_NS = 50000
};

static const int64_t MS = 1000000; /* ns */

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- advancing ---- */

void group_enter(struct ddp_group *g, struct ddp_request *r)
{
    r->coll.number = ++g->number;
    arrivals_note(g);
    g->calls[g->number % CALLS] = coll_call(&r->coll, g->layout.size);
    watch_enter(g, &g->calls[g->number % CALLS]);
    if (!r->ended)
        queue_append(&g->colls, r);
}

static void end_first(struct ddp_group *g)
{
    struct ddp_request *r = g->colls.first;
    queue_remove(&g->colls, r);
    coll_finish(&r->coll);
    r->ended = true;
}

/* ---- failures ---- */

static int gone(struct ddp_group *g, int rank, bool left, struct ddp_err *err)
{
    layout_blame(&g->layout, rank,
                 left ? "has left the group" : "has gone (its process ended)", err);
    return group_rank_lost(g, rank, err);
}

static int dead_of_host(const struct ddp_group *g)
{
    for (int i = 0; g->shm && i < g->shm->n; i++) {
        bool left = false;
        if (i != g->shm->me && shm_is_gone(g->shm, i, &left) && !left)
            return g->shm->ranks[i];
    }
    return -1;
}

/* The calls of the ranks differ. A rank that has seen a failure may call something else
 * because of it: the failure is reported rather than the mismatch. */
static int disagree(struct ddp_group *g, struct ddp_err *err)
{
    int first = dead_of_host(g);
    if (first >= 0)
        return gone(g, first, false, err);
    TRY(group_adopt_family_failure(g, -1, err));
    for (int i = 0; i < 2; i++) {
        TRY(group_adopt_failure_soon(g, err));
    }
    return group_break(g, -1, err);
}

static int failed(struct ddp_group *g, int culprit, struct ddp_err *err)
{
    if (culprit >= 0)
        return group_rank_lost(g, culprit, err);
    return watch_blind(g) ? group_failed(g, err) : disagree(g, err);
}

int group_progress(struct ddp_group *g, struct ddp_err *err)
{
    int culprit;
    TRY(group_check_owner(g, err));
    if (g->broken) {
        *err = g->why;
        return -1;
    }
    if (g->tcp && tcp_begin(g->tcp, &culprit, err))
        return group_forward_failure(g, culprit, err);
    while (g->colls.first) {
        struct coll *c = &g->colls.first->coll;
        const struct backend *b =
            coll_stays_ours(c) ? backend_of_layout(&g->layout) : g->backend;
        int rc = b->advance(g, c, &culprit, err);
        if (rc == ADVANCE_ERROR)
            return failed(g, culprit, err);
        if (rc == ADVANCE_LATER)
            break;
        end_first(g);
    }
    if (g->mailboxes && p2p_progress(g, &culprit, err) < 0)
        return culprit < 0 ? disagree(g, err) : group_rank_lost(g, culprit, err);
    if (g->backend->progress && g->backend->progress(g, &culprit, err) < 0)
        return group_failed(g, err);
    return 0;
}

/* ---- what is waited for ---- */

static bool is_busy(const struct ddp_group *g)
{
    return !g->broken && (g->colls.first || g->npending > 0);
}

struct sleeper {
    struct ddp_group *g;
    int lagging;
};

static bool something_to_do(void *arg)
{
    const struct sleeper *z = arg;
    struct shm *s = z->g->shm;
    const struct coll *c = awaited_coll(z->g);
    if (atomic_load(&s->head->failed) != 0 || p2p_ready(z->g))
        return true;
    if (!c)
        return false;
    bool all = c->state == COLL_ANNOUNCED ? shm_all_posted(s) : shm_all_stepped(s);
    return all || s->arrived != z->lagging;
}

static void sleep_some(struct ddp_group *g, int most_ms)
{
    bool blind = watch_blind(g); /* completions wake no waiter */
    for (const struct ddp_group *o = g->family; o != g; o = o->family)
        blind = blind || is_busy(o);
    if (blind) {
        nanosleep(&(struct timespec){.tv_nsec = FAMILY_US * 1000}, NULL);
        return;
    }
    bool any = g->shm && p2p_awaits_host(g), local = any || awaited_coll(g);
    bool remote = g->tcp && (g->tcp->ninterests > 0 || !local);
    if (remote) {
        tcp_sleep(g->tcp, local ? MIXED_MS : most_ms);
        return;
    }
    struct shm *s = g->shm;
    if (!s) { /* a group of one waits for its own message */
        poll(NULL, 0, most_ms);
        return;
    }
    struct sleeper z = {g, s->arrived < s->n ? s->arrived : 0};
    shm_sleep(s, any ? SHM_ANY : (unsigned)z.lagging, most_ms, something_to_do, &z);
}

/* ---- what can go wrong ---- */

static int look_around_host(struct ddp_group *g, const bool *ended, struct ddp_err *err)
{
    struct shm *s = g->shm;
    for (int i = 0; i < s->n; i++) {
        bool left = false;
        if (i == s->me || !awaited_rank(g, i) || !shm_is_gone(s, i, &left))
            continue;
        /* it may have done its part before it went */
        TRY(group_progress(g, err));
        enum awaited needed = awaited_rank(g, i);
        if (*ended || needed == AWAITED_NOT)
            continue;
        if (left && needed == AWAITED_PERHAPS) {
            if (p2p_awaits(g, s->ranks[i])) /* otherwise its messages are not read yet */
                p2p_left(g, s->ranks[i]);
            continue;
        }
        int dead = left ? dead_of_host(g) : -1; /* why the other has left, perhaps */
        return gone(g, dead >= 0 ? dead : s->ranks[i], left && dead < 0, err);
    }
    return 0;
}

static int look_around(struct ddp_group *g, const bool *ended, struct ddp_err *err)
{
    if (g->shm && look_around_host(g, ended, err) < 0)
        return -1;
    if (!g->tcp || *ended)
        return 0;
    watch_choose(g);
    int culprit = tcp_look(g->tcp, err);
    if (culprit < 0)
        return 0;
    struct ddp_err how = *err; /* its last data may have arrived before it went */
    TRY(group_progress(g, err));
    if (!*ended && watch_blind(g))
        TRY(group_adopt_failure_soon(g, err));
    watch_choose(g); /* it may have announced its leave meanwhile */
    *err = how;
    return *ended || !tcp_still_needs(g->tcp, culprit) ? 0
                                                       : group_rank_lost(g, culprit, err);
}

/* Has a waiting rank reported a call that differs from ours? */
static bool contradicted(struct ddp_group *g, struct ddp_err *err)
{
    int other;
    struct recent_calls calls;
    while (g->tcp && tcp_recv_calls(g->tcp, &other, &calls)) {
        for (int i = RECENT_CALLS - 1; i >= 0; i--) { /* the earliest is the cause */
            const struct call *theirs = &calls.call[i];
            const struct call *mine = &g->calls[theirs->number % CALLS];
            if (theirs->number > 0 && mine->number == theirs->number &&
                !coll_same(mine, theirs)) {
                coll_disagree(g->layout.rank, mine, other, theirs, err);
                return true;
            }
        }
    }
    return watch_review(g, err);
}

/* Report our calls to ranks of other hosts that we wait for or watch. */
static void report_calls(struct ddp_group *g)
{
    struct recent_calls mine = {0};
    uint64_t number = g->colls.first->coll.number;
    for (uint64_t i = 0; i < RECENT_CALLS && i < number; i++)
        mine.call[i] = g->calls[(number - i) % CALLS];
    tcp_send_calls(g->tcp, &mine);
}

/* Has a failure been reported, or a call that differs from ours? During a wait (`ended`)
 * the failure may come after what is waited for. */
static int check_reports(struct ddp_group *g, const bool *ended, struct ddp_err *err)
{
    int culprit;
    struct ddp_err theirs;
    if (!group_failure_reported(g, &culprit, &theirs))
        return contradicted(g, err) ? disagree(g, err) : 0;
    if (ended && group_progress(g, err) < 0)
        return -1;
    if (ended && *ended)
        return 0;
    *err = theirs;
    return group_forward_failure(g, culprit, err);
}

/* Look for a cause: -1 with the group broken if one is found now. */
static int find_cause(struct ddp_group *g, struct ddp_err *err)
{
    TRY(check_reports(g, NULL, err));
    if (watch_contradicted(g, err))
        return disagree(g, err);
    int culprit = dead_of_host(g);
    if (culprit >= 0)
        return gone(g, culprit, false, err);
    if (!g->tcp)
        return 0;
    watch_choose(g);
    culprit = tcp_look(g->tcp, err);
    if (culprit >= 0)
        return group_rank_lost(g, culprit, err);
    if (g->colls.first)
        report_calls(g);
    return 0;
}

int group_failed(struct ddp_group *g, struct ddp_err *err)
{
    struct ddp_err why;
    int64_t until = now_ms() + CAUSE_MS;
    while (!g->broken && watch_wanted(g) && now_ms() < until) {
        if (find_cause(g, &why) < 0) {
            *err = why;
            return -1;
        }
        poll(NULL, 0, POLL_MS);
    }
    if (!g->broken && g->layout.size > 1)
        err_prefix(err, "%s", layout_who(&g->layout, g->layout.rank).text);
    return group_break(g, -1, err);
}

/* Were other hosts polled a moment ago? Polling is a system call, and a report that
 * comes a moment later could have come after it anyway. */
static bool checked_just_now(struct ddp_group *g)
{
    int64_t now = now_ns();
    bool lately = now - g->asked_ns < RECHECK_NS;
    g->asked_ns = lately ? g->asked_ns : now;
    return lately;
}

/* Called for each message, so the free checks come first. */
static bool no_new_failure(struct ddp_group *g)
{
    if (g->broken || watch_due(g))
        return false;
    if (g->shm && atomic_load_explicit(&g->shm->head->failed, memory_order_acquire))
        return false;
    return !g->tcp || checked_just_now(g);
}

int group_check_failures(struct ddp_group *g, struct ddp_err *err)
{
    struct ddp_err why;
    pthread_t waiter = atomic_load_explicit(&g->waiter, memory_order_relaxed);
    TRY(group_check_owner(g, err));
    if (waiter && waiter != pthread_self())
        return err_set(err, "another thread waits in a call on this group: make one at a "
                            "time, or a group for each thread (ddp_group_options.name)");
    if (no_new_failure(g))
        return 0;
    if (!g->broken)
        check_reports(g, NULL, &why);
    if (g->broken && err)
        *err = g->why;
    return g->broken ? -1 : 0;
}

/* Note in `p` whether data have moved. */
static void note_moves(const struct ddp_group *g, struct patience *p, int64_t now)
{
    uint64_t moves = (g->shm ? g->shm->moves : 0) + (g->tcp ? g->tcp->moves : 0);
    if (p->moved_ns == 0 || p->moves != moves) {
        p->moves = moves;
        p->moved_ns = now;
    }
}

/* Every turn of a long wait: checks for reports. Every LOOK_MS: checks that the awaited
 * ranks are alive and, after SILENT_MS without progress, reports our call to them. */
static int attend(struct ddp_group *g, struct patience *p, const bool *ended, int64_t now,
                  struct ddp_err *err)
{
    TRY(check_reports(g, ended, err));
    if (*ended || now / MS - p->looked < LOOK_MS)
        return 0;
    p->looked = now / MS;
    TRY(look_around(g, ended, err));
    if (*ended || !g->colls.first || now - p->moved_ns < SILENT_MS * MS)
        return 0;
    if (watch_contradicted(g, err))
        return disagree(g, err);
    if (g->tcp)
        report_calls(g);
    return 0;
}

/* Other ranks may wait for operations of another group of the family. */
static void progress_family(struct ddp_group *g)
{
    struct ddp_err unwanted; /* reported by that group's own calls */
    for (struct ddp_group *o = g->family; o != g; o = o->family) {
        if (is_busy(o))
            group_progress(o, &unwanted);
    }
}

int group_poll(struct ddp_group *g, const bool *ended, struct ddp_err *err)
{
    TRY(group_progress(g, err));
    if (*ended)
        return 0;
    progress_family(g);
    int64_t now = now_ns();
    note_moves(g, &g->polling, now);
    return attend(g, &g->polling, ended, now, err);
}

/* A wait that has lasted: the launcher's hang reports, and the deadline. */
static int check_patience(struct ddp_group *g, const struct ddp_request *r,
                          struct patience *p, int64_t now, struct ddp_err *err)
{
    int64_t waited = now / MS - p->began;
    int64_t most = p->timeout_ms > 0 ? p->timeout_ms : g->timeout_ms;
    if (!p->reported && waited >= REPORT_MS) {
        p->reported = true;
        hang_info_set(g, r, waited);
    }
    if (waited < most)
        return 0;
    ddp_explain_wait(g, (double)most / 1000, err);
    TRY(group_adopt_failure(g, err)); /* another deadline passed before ours */
    return group_break(g, -1, err);
}

/* Spin while data move, and for spin_ns more, then sleep between checks. Time in which
 * this process is stopped, perhaps with all others (Ctrl-Z), is no part of a deadline. */
static int wait_long(struct ddp_group *g, const struct ddp_request *r, struct patience *p,
                     struct ddp_err *err)
{
    const bool *ended = &r->ended;
    struct ddp_err unwanted;
    int64_t last = 0; /* ms, of the last turn */
    err = err ? err : &unwanted;
    for (;;) {
        for (int i = 0; i < 50; i++) {
            if (!*ended && group_progress(g, err) < 0)
                return -1;
            if (*ended)
                return 0;
            cpu_relax();
        }
        progress_family(g);
        int64_t now = now_ns(), left = LOOK_MS, took = last > 0 ? now / MS - last : 0;
        if (p->began == 0)
            p->began = p->looked = now / MS;
        p->began += took - limit_count_ms(took, LOOK_MS);
        last = now / MS;
        note_moves(g, p, now);
        bool sleepy = now - p->moved_ns >= g->spin_ns;
        if (!sleepy && now / MS - p->looked < LOOK_MS)
            continue;
        if (attend(g, p, ended, now, err) < 0 ||
            (!*ended && check_patience(g, r, p, now, err) < 0))
            return -1;
        if (p->until > 0 && (left = p->until - now / MS) <= 0)
            return 0;
        if (sleepy && !*ended)
            sleep_some(g, left < LOOK_MS ? (int)left : LOOK_MS);
    }
}

int group_wait(struct ddp_group *g, const struct ddp_request *r, struct patience *p,
               struct ddp_err *err)
{
    struct patience usual = {0};
    p = p ? p : &usual;
    atomic_store_explicit(&g->waiter, pthread_self(), memory_order_relaxed);
    int rc = wait_long(g, r, p, err);
    atomic_store_explicit(&g->waiter, 0, memory_order_relaxed);
    if (p->reported && (rc < 0 || r->ended)) {
        hang_info_clear();
        p->reported = false;
    }
    return rc;
}

/* ---- calls of foreign libraries ---- */

int group_call_foreign(struct ddp_group *g, void (*call)(void *copy), void *arg,
                       size_t bytes, const char *what, const char *hint,
                       struct ddp_err *err)
{
    const void *done;
    bool ended = false;
    struct offload *a = offload_begin(call, arg, bytes, err);
    if (!a)
        return -1;
    g->npending++; /* so that it is looked whether the others live */
    int64_t last = now_ms(), until = last + g->timeout_ms;
    while (!(done = offload_wait(a, POLL_MS)) && group_poll(g, &ended, err) == 0) {
        limit_extend(&until, last, LOOK_MS);
        last = now_ms();
        if (last < until)
            continue;
        err_set(err, "%s: the %d ranks have not met within %g s: %s", what,
                g->layout.size, (double)g->timeout_ms / 1000, hint);
        group_break(g, -1, err); /* the same words from each */
        break;
    }
    if (!g->broken)
        g->npending--;
    if (done)
        memcpy(arg, done, bytes);
    offload_end(a);
    return done ? 0 : -1;
}
