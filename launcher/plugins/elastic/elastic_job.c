/* launcher/plugins/elastic/elastic_job.c - hosts that come and go
 *
 * Keeps as many agents running as the job can use, on the hosts that are offered: on a
 * new one at once, on one that was lost or cannot be reached again and again, with
 * back-off. What has joined gets ranks in the next attempt (job/spares.c), which --grow
 * now begins. When too few are left for one, waits for --node-wait.
 */
#define LOG_SUBSYS "elastic"
#include "launcher/job/plugin.h"
#include "launcher/plugins/plugins.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/plugins/elastic/listing.h"
#include "launcher/transport/program.h"

#include <stdlib.h>
#include <string.h>

/* s: the longest time between two starts of an agent; ms: a host that is lost sooner
 * after it has joined counts as a failed start; hosts that join together grow the job
 * together */
enum { PAUSE_MOST_S = 60, STABLE_MS = 60000, TOGETHER_MS = 3000 };

struct offer {
    struct alloc_node as; /* owned: as listed */
    bool listed;
    long node;       /* in the allocation; -1: it has no entry */
    int failures;    /* in a row */
    int64_t next_ms; /* no start before; monotonic */
    int64_t begun_ms, joined_ms;
};

struct elastic {
    struct job *j;         /* borrowed */
    struct offer **offers; /* owned */
    size_t n;
    struct listing *listing; /* owned; NULL: the hosts stay the same */
    struct event *deadline;  /* owned: of the wait; NULL: not open */
    bool waits, over;
    bool few;           /* told that too few hosts are listed */
    int64_t grow_at_ms; /* the latest; 0: nothing to grow by */
};

static const struct job_node *node_of(const struct elastic *e, const struct offer *o)
{
    return o->node < 0 ? NULL : &e->j->nodes[o->node];
}

static bool is_up(const struct elastic *e, const struct offer *o)
{
    const struct job_node *n = node_of(e, o);
    return n && n->joined && job_node_connected(n);
}

static bool is_starting(const struct elastic *e, const struct offer *o)
{
    const struct job_node *n = node_of(e, o);
    return n && n->wanted && !n->joined && !n->trouble;
}

/* Others are started in the place of one that is not listed, or has too few slots. */
static bool is_useful(const struct elastic *e, const struct offer *o)
{
    return o->listed &&
           (is_starting(e, o) || (is_up(e, o) && job_node_room(e->j, node_of(e, o)) > 0));
}

static struct offer *offer_at(const struct elastic *e, unsigned node)
{
    for (size_t i = 0; i < e->n; i++) {
        if (e->offers[i]->node == (long)node)
            return e->offers[i];
    }
    return NULL;
}

/* --- starts ------------------------------------------------------------------------- */

static void put_off(struct offer *o)
{
    int64_t s = o->failures < 6 ? (int64_t)1 << o->failures : PAUSE_MOST_S;
    o->failures++;
    o->next_ms = now_ms() + s * 1000;
}

/* Take the entry of a host that cannot be reached. */
static bool make_room(struct elastic *e)
{
    for (size_t i = 0; i < e->n; i++) {
        struct offer *o = e->offers[i];
        const struct job_node *n = node_of(e, o);
        if (!n || n->place >= 0 || is_up(e, o) || is_starting(e, o))
            continue;
        job_host_forget(e->j, (unsigned)o->node);
        o->node = -1;
        return true;
    }
    return false;
}

static bool start(struct elastic *e, struct offer *o)
{
    if (o->node < 0)
        o->node = job_host_add(e->j, &o->as);
    if (o->node < 0 && make_room(e))
        o->node = job_host_add(e->j, &o->as);
    if (o->node < 0)
        return false;
    o->begun_ms = now_ms();
    job_host_start(e->j, (unsigned)o->node);
    return true;
}

static bool may_start(const struct elastic *e)
{
    const struct job *j = e->j;
    return e->waits ||
           (e->listing && (j->state == JOB_PREPARING || j->state == JOB_RUNNING ||
                           (j->state < JOB_LEAVING && j->restart.pending)));
}

static void start_more(struct elastic *e)
{
    size_t active = 0;
    for (size_t i = 0; i < e->n; i++)
        active += is_useful(e, e->offers[i]);
    for (size_t i = 0; may_start(e) && i < e->n && active < job_hosts_most(e->j); i++) {
        struct offer *o = e->offers[i];
        if (o->listed && !is_up(e, o) && !is_starting(e, o) && now_ms() >= o->next_ms)
            active += start(e, o);
    }
}

static void on_host_failed(void *state, unsigned node, const char *line)
{
    struct elastic *e = state;
    struct offer *o = offer_at(e, node);
    if (!o)
        return;
    if (o->failures == 0)
        log_warn("%s; it is tried again", line);
    else
        log_info("%s", line);
    put_off(o);
}

static void on_node_joined(void *state, unsigned node)
{
    struct elastic *e = state;
    struct offer *o = offer_at(e, node);
    if (o)
        o->joined_ms = now_ms();
}

static void on_node_lost(void *state, unsigned node, const char *why)
{
    struct elastic *e = state;
    struct offer *o = offer_at(e, node);
    if (!o)
        return;
    if (now_ms() - o->joined_ms > STABLE_MS)
        o->failures = 0;
    put_off(o);
}

static void end_late_starts(struct elastic *e)
{
    for (size_t i = 0; i < e->n; i++) {
        struct offer *o = e->offers[i];
        if (!is_starting(e, o) || !e->j->nodes[o->node].late ||
            now_ms() - o->begun_ms < e->j->opts->start_timeout_ms)
            continue;
        OWNED char *line = xasprintf("%s: its agent has not connected in time "
                                     "(--start-timeout)",
                                     o->as.name);
        job_host_failed(e->j, (unsigned)o->node, line);
    }
}

/* --- the list ----------------------------------------------------------------------- */

static void offer_destroy(struct offer *o)
{
    alloc_node_finish(&o->as);
    free(o);
}

static struct offer *add_offer(struct elastic *e, const struct alloc_node *as, long node)
{
    struct offer *o = xcalloc(1, sizeof *o);
    alloc_node_copy(&o->as, as);
    o->node = node;
    e->offers = xrealloc(e->offers, e->n + 1, sizeof(struct offer *));
    e->offers[e->n++] = o;
    return o;
}

/* Lists rarely change: `at` is where it was the last time. */
static struct offer *find_offer(const struct elastic *e, const char *name, size_t at)
{
    if (at < e->n && strcmp(e->offers[at]->as.name, name) == 0)
        return e->offers[at];
    for (size_t i = 0; i < e->n; i++) {
        if (strcmp(e->offers[i]->as.name, name) == 0)
            return e->offers[i];
    }
    return NULL;
}

/* What is not listed, not in use, and has no place in the plan. */
static void drop_unlisted(struct elastic *e)
{
    size_t kept = 0;
    for (size_t i = 0; i < e->n; i++) {
        struct offer *o = e->offers[i];
        bool used = is_up(e, o) || (o->node >= 0 && e->j->nodes[o->node].place >= 0);
        if (o->listed || used) {
            e->offers[kept++] = o;
            continue;
        }
        if (o->node >= 0)
            job_host_forget(e->j, (unsigned)o->node);
        offer_destroy(o);
    }
    e->n = kept;
}

static void tell_few(struct elastic *e, size_t listed)
{
    const struct opts *o = e->j->opts;
    size_t least = (size_t)opts_least_nodes(o);
    if (listed < least && !e->few)
        log_warn("%s lists %zu host%s, but --nnodes needs %zu: the job keeps those that "
                 "work",
                 o->discovery ? "--host-discovery-script" : o->hostfile, listed,
                 listed == 1 ? "" : "s", least);
    e->few = listed < least;
}

static void on_update(const struct alloc *hosts, void *arg)
{
    struct elastic *e = arg;
    struct job *j = e->j;
    if (j->state == JOB_GATHERING)
        return;
    for (size_t i = 0; i < e->n; i++)
        e->offers[i]->listed = false;
    for (size_t i = 0; i < hosts->nnodes; i++) {
        const struct alloc_node *as = &hosts->nodes[i];
        struct offer *o = find_offer(e, as->name, i);
        o = o ? o : add_offer(e, as, -1);
        o->listed = true;
        if (o->node >= 0 && as->slots_by == SLOTS_GIVEN) { /* for the next plan */
            j->nodes[o->node].resized |= j->alloc->nodes[o->node].slots != as->slots;
            j->alloc->nodes[o->node].slots = as->slots;
        }
    }
    for (size_t i = 0; i < e->n; i++) {
        if (e->offers[i]->node >= 0)
            job_host_offered(j, (unsigned)e->offers[i]->node, e->offers[i]->listed);
    }
    tell_few(e, hosts->nnodes);
    drop_unlisted(e);
    start_more(e);
}

/* --- growing ------------------------------------------------------------------------ */

static bool any_starting(const struct elastic *e)
{
    for (size_t i = 0; i < e->n; i++) {
        if (is_starting(e, e->offers[i]))
            return true;
    }
    return false;
}

static void grow(struct elastic *e)
{
    struct job *j = e->j;
    bool wanted = j->state == JOB_RUNNING && j->opts->grow == GROW_NOW &&
                  j->opts->elastic == ELASTIC_RESTART &&
                  (job_can_grow(j) || job_can_drop(j) || job_can_resize(j));
    if (!wanted) {
        e->grow_at_ms = 0;
        return;
    }
    if (e->grow_at_ms == 0)
        e->grow_at_ms = now_ms() + TOGETHER_MS;
    if ((any_starting(e) || j->peers) && now_ms() < e->grow_at_ms)
        return;
    e->grow_at_ms = 0;
    job_resize(
        j, job_can_grow(j) ? "hosts have joined: all ranks are stopped, to go on with "
                             "more of them (--grow now)"
           : job_can_drop(j)
               ? "hosts are no longer listed: all ranks are stopped, to "
                 "go on without them (--grow now)"
               : "hosts have other slots now: all ranks are stopped, to go on with "
                 "these (--grow now)");
}

static void on_tick(void *state)
{
    struct elastic *e = state;
    end_late_starts(e);
    start_more(e);
    grow(e);
}

/* --- waiting ------------------------------------------------------------------------ */

static void begin_wait(struct elastic *e)
{
    struct job *j = e->j;
    job_say(j,
            "ddprun: too few hosts are left; waiting up to %.4g s for one to "
            "come back%s (--node-wait)",
            (double)j->opts->node_wait_ms / 1e3,
            e->listing || j->peers ? ", or for another one" : "");
    e->waits = true;
    for (size_t i = 0; i < e->n; i++)
        e->offers[i]->next_ms = 0;
    loop_arm(e->deadline, j->opts->node_wait_ms);
    start_more(e);
}

static void on_deadline(evutil_socket_t fd, short what, void *arg)
{
    struct elastic *e = arg;
    e->waits = false;
    e->over = true;
    if (!e->j->restart.pending)
        return;
    job_fail_text(e->j, CAUSE_CANNOT, EXIT_CANNOT_START,
                  xasprintf("no host has come in the place of the lost one within %.4g s "
                            "(--node-wait)",
                            (double)e->j->opts->node_wait_ms / 1e3));
    job_check(e->j);
}

static bool on_may_restart(void *state)
{
    struct elastic *e = state;
    bool enough = job_has_enough(e->j);
    if (!enough && job_any_held(e->j))
        return false; /* it may be enough later */
    if (enough || e->over || e->j->opts->node_wait_ms == 0) {
        e->waits = false;
        event_del(e->deadline);
        return true;
    }
    if (!e->waits)
        begin_wait(e);
    return false;
}

/* --- life --------------------------------------------------------------------------- */

static int on_init(void *state, struct ddp_err *err)
{
    struct elastic *e = state;
    struct job *j = e->j;
    if (j->opts->node_wait_ms > 0 && j->peers && !j->alloc->changes)
        return err_set(err, "--node-wait needs --nnodes MIN:MAX (MIN < MAX) where each "
                            "host has a ddprun of its own");
    if (opts_given(j->opts, "node-wait") && j->alloc->nnodes == 1 &&
        j->alloc->nodes[0].local && !j->alloc->changes)
        log_warn("--node-wait has no effect: the only host is this one");
    if (j->opts->grow == GROW_NOW && !j->alloc->changes)
        return err_set(err,
                       "--grow now needs --host-discovery-script, or --nnodes MIN:MAX "
                       "(MIN < MAX) with --hostfile or --node-rank");
    if (!job_may_gain(j))
        return 1;
    for (size_t i = 0; i < j->alloc->nnodes && !j->peers; i++) {
        if (j->alloc->nodes[i].name[0])
            add_offer(e, &j->alloc->nodes[i], (long)i)->listed = true;
    }
    return 0;
}

static int on_open(void *state, struct ddp_err *err)
{
    struct elastic *e = state;
    struct job *j = e->j;
    e->deadline = loop_timer(j->loop, on_deadline, e);
    if (j->alloc->changes && !j->peers)
        e->listing = listing_create(j->loop, j->reap, j->opts, on_update, e);
    return 0;
}

static void on_fini(void *state)
{
    struct elastic *e = state;
    listing_destroy(e->listing);
    loop_free(e->deadline);
    for (size_t i = 0; i < e->n; i++)
        offer_destroy(e->offers[i]);
    free(e->offers);
}

const struct job_plugin elastic_job = {
    .name = "elastic",
    .state_size = sizeof(struct elastic),
    .init = on_init,
    .open = on_open,
    .fini = on_fini,
    .node_joined = on_node_joined,
    .node_lost = on_node_lost,
    .host_failed = on_host_failed,
    .may_restart = on_may_restart,
    .tick = on_tick,
};
