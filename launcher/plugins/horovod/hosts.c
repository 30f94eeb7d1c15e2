/* launcher/plugins/horovod/hosts.c - see hosts.h */
#define LOG_SUBSYS "job"
#include "launcher/plugins/horovod/hosts.h"

#include "common/duration.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/transport/program.h"

#include <stdlib.h>
#include <time.h>

enum {
    TOGETHER_MS = 2000, /* changes of hosts within this time make one new world */
    AGAIN_MS = 5000,    /* between two requests to a rank 0 */
};

/* It has no process, but a host that can be used. */
static bool may_return(const struct horovod *h, int rank)
{
    long node = job_node_at(h->j, h->j->plan->ranks[rank].node);
    return h->slots[rank].state == SLOT_GONE && node >= 0 &&
           job_node_usable(&h->j->nodes[node]) && !job_node_runs(h->j, (unsigned)node) &&
           !job_node_resized(h->j, (unsigned)node);
}

static bool is_unwanted(const struct horovod *h, long node)
{
    return (h->j->nodes[node].leaving && job_can_drop(h->j)) ||
           job_node_resized(h->j, (unsigned)node);
}

static bool has_state(const struct slot *s)
{
    return s->state >= SLOT_JOINS && s->state <= SLOT_ASKS;
}

/* If all hosts with the state of the program are to be left, that of Horovod's rank 0
 * stays until others have it, unless it is not offered any more; -1: there is none. */
static long find_keeper(const struct horovod *h)
{
    const struct job *j = h->j;
    long keeper = -1;
    int first = h->nslots;
    for (int r = 0; r < h->nslots; r++) {
        const struct slot *s = &h->slots[r];
        long node = job_node_at(j, j->plan->ranks[r].node);
        if (node < 0 || !has_state(s))
            continue;
        if (!is_unwanted(h, node))
            return -1;
        if (s->place.rank >= first || j->nodes[node].leaving)
            continue;
        keeper = node;
        first = s->place.rank;
    }
    return keeper;
}

/* Its ranks get no place in the next world. With another number of slots it gets others
 * in the one after that. */
static bool is_dropped(const struct horovod *h, long node, long keeper)
{
    return node >= 0 && node != keeper && is_unwanted(h, node);
}

/* Are there ranks on hosts that leave, and would the state of the program remain? */
static bool may_drop(const struct horovod *h)
{
    bool leave = false, keep = false;
    long keeper = find_keeper(h);
    for (int r = 0; r < h->nslots; r++) {
        const struct slot *s = &h->slots[r];
        long node = job_node_at(h->j, h->j->plan->ranks[r].node);
        bool dropped = is_dropped(h, node, keeper);
        leave |= s->state != SLOT_GONE && dropped;
        keep |= has_state(s) && node >= 0 && !dropped;
    }
    return leave && keep;
}

/* Hosts that have joined take part in the next world, those that leave do not: their
 * ranks, which wait for their places, are ended. */
void hosts_take(struct horovod *h)
{
    struct job *j = h->j;
    bool leave = may_drop(h);
    long keeper = find_keeper(h);
    job_add_nodes(j);
    for (int r = 0; r < h->nslots; r++) {
        if (may_return(h, r))
            slot_move(h, &h->slots[r], SLOT_MISSING);
    }
    for (unsigned i = 0; leave && i < j->alloc->nnodes; i++) {
        int place = j->nodes[i].place;
        if (place < 0 || slots_are_gone(h, place) || !is_dropped(h, i, keeper))
            continue;
        slots_set_gone(h, place);
        job_end_node(j, i);
    }
    h->resized |= h->changed_ms > 0;
    h->changed_ms = h->told_ms = 0;
}

bool hosts_awaited(struct horovod *h)
{
    const struct opts *o = h->j->opts;
    if (o->min_nnodes == 0 || o->node_wait_ms == 0 || job_has_enough(h->j)) {
        h->late_ms = 0;
    } else if (h->late_ms == 0) {
        h->late_ms = now_ms() + o->node_wait_ms;
        job_say(h->j,
                "ddprun: too few hosts are left; the ranks wait up to %.4g s for another "
                "one (--node-wait)",
                (double)o->node_wait_ms / 1e3);
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

/* Horovod forgets a request that comes before hvd.elastic.run listens, or before the
 * reset ends by which a rank joins a world; nothing shows when. So notify rank 0 again
 * until it asks for its place in the next world. */
static bool is_due(const struct horovod *h)
{
    return h->told_ms == 0 ? now_ms() - h->changed_ms >= TOGETHER_MS
                           : now_ms() - h->told_ms >= AGAIN_MS;
}

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
    if (h->told_ms == 0)
        log_info("rank %d, Horovod's rank 0, is told that hosts have changed", r);
    h->told_ms = now_ms();
}

/* Would the next world have other hosts? */
static bool hosts_differ(const struct horovod *h)
{
    bool differ = job_can_add(h->j) || may_drop(h);
    for (int r = 0; r < h->nslots; r++)
        differ |= may_return(h, r);
    return differ;
}

/* No other host can take the state while its ranks end: they stay, which is told once. */
static void say_kept(struct horovod *h)
{
    long node = find_keeper(h);
    const struct alloc_node *host = node < 0 ? NULL : h->j->nodes[node].host;
    if (!host || h->kept_slots == host->slots || may_drop(h))
        return;
    h->kept_slots = host->slots;
    int n = h->j->plan->nodes[h->j->nodes[node].place].nlocal;
    job_say(h->j,
            "ddprun: %s has %d slots now, and keeps its ranks, %d, as long "
            "as no other host has their state",
            host->name, host->slots, n);
}

void hosts_watch(struct horovod *h)
{
    say_kept(h);
    if (!hosts_differ(h))
        h->changed_ms = h->told_ms = 0;
    else if (h->changed_ms == 0)
        h->changed_ms = now_ms();
    else if (is_due(h))
        notify(h);
}

/* The agents of those that leave end, too; that of the store stays, without ranks. */
void hosts_release(struct horovod *h)
{
    for (unsigned i = 0; i < h->j->alloc->nnodes; i++) {
        const struct job_node *n = &h->j->nodes[i];
        if (n->place >= 0 && n->ended && slots_are_gone(h, n->place) &&
            ((n->leaving && !job_has_store(h->j, i)) || job_node_resized(h->j, i)))
            job_node_vacate(h->j, i);
    }
}

bool hosts_claim(struct horovod *h, unsigned node, const char *why)
{
    struct job *j = h->j;
    int place = j->nodes[node].place;
    if (!h->formed)
        return false;
    bool gone = slots_are_gone(h, place);
    if (!gone &&
        (h->ending || h->counts[SLOT_STARTS] + h->counts[SLOT_JOINS] > 0 ||
         j->opts->min_nnodes == 0 || (j->opts->node_wait_ms == 0 && !job_has_enough(j))))
        return false;
    slots_set_gone(h, place);
    if (slots_keepers(h) == 0)
        return false; /* the state is lost */
    job_node_vacate(j, node);
    if (gone)
        return true;
    job_say(j, "ddprun: %s is lost: %s; the ranks of other hosts keep running",
            j->nodes[node].host->name, why);
    if (h->failed_ns == 0)
        h->failed_ns = now_ns();
    return true;
}
