/* launcher/job/losses.c - see losses.h */
#define LOG_SUBSYS "job"
#include "launcher/job/losses.h"

#include "common/duration.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/job/describe.h"
#include "launcher/job/hooks.h"
#include "launcher/job/nodes.h"
#include "launcher/job/spares.h"
#include "launcher/transport/program.h"

#include <stdlib.h>

/* ms from the first failed host to the report: others may still fail */
enum { SETTLE_MS = 3000 };

/* --- nodes that do not start -------------------------------------------------------- */

void job_host_failed(struct job *j, unsigned node, const char *line)
{
    j->nodes[node].wanted = false;
    JOB_HOOKS(j, host_failed, node, line);
}

void job_node_failed(struct job *j, unsigned node, const char *line)
{
    struct job_node *n = &j->nodes[node];
    if (j->state > JOB_GATHERING && !n->joined)
        job_host_failed(j, node, line);
    if (j->state != JOB_GATHERING || n->trouble)
        return; /* a lost link is reported by job_node_lost() */
    n->trouble = xstrdup(line);
    if (!j->instead) /* that plug-in waits for every host */
        loop_arm(j->gathering.settle, SETTLE_MS);
    job_check(j);
}

static void start_failed(struct job *j, unsigned node, const char *why)
{
    OWNED char *line = xasprintf("%s: the agent broke off while it was starting: %s",
                                 j->nodes[node].host->name, why);
    job_node_failed(j, node, line);
}

/* --- nodes that are lost ------------------------------------------------------------ */

void job_count_exit(struct job *j)
{
    j->running--;
    j->counted_ns = now_ns();
}

/* Its agent ends with the link, unless others are reached over it. */
static void leave_node(struct job *j, unsigned node, const char *why)
{
    struct link *via = j->nodes[node].via;
    if (via && !job_link_leads(j, via))
        job_drop_link(j, via, why);
    else
        job_check(j);
}

/* All ranks have exited with 0, and only the rest of the output is waited for. */
static bool comes_too_late(const struct job *j)
{
    return j->state == JOB_DRAINING && j->cause.kind == CAUSE_NONE && job_losses(j) != 0;
}

/* A pseudo-terminal is one stream. */
static bool has_all_output(const struct job *j, const struct job_node *n)
{
    uint8_t all =
        j->job.rows > 0 ? 1U << OUT_STDOUT : 1U << OUT_STDOUT | 1U << OUT_STDERR;
    for (int i = 0; i < job_ranks_on(j, n); i++) {
        if (j->ranks[j->plan->nodes[n->place].ranks[i]].complete != all)
            return false;
    }
    return true;
}

void job_give_up_ranks(struct job *j, const struct job_node *n)
{
    for (int i = 0; i < job_ranks_on(j, n); i++) {
        struct job_rank *r = &j->ranks[j->plan->nodes[n->place].ranks[i]];
        if (r->exited)
            continue;
        r->exited = true;
        r->end_unknown = n->lost;
        r->left_behind = !n->lost && j->spawned_ns > 0;
        job_count_exit(j);
    }
}

/* Does a plug-in let the ranks of the others go on? */
static bool is_claimed(struct job *j, unsigned node, const char *why)
{
    return j->state == JOB_RUNNING && j->nodes[node].place >= 0 &&
           JOB_HOOKS_ANY(j, node_claimed, node, why);
}

void job_node_lost(struct job *j, unsigned node, const char *why)
{
    struct job_node *n = &j->nodes[node];
    if (n->lost)
        return;
    n->lost = true;
    n->unlisted |= j->peers != NULL; /* its ddprun ends, and does not come back */
    int64_t at_ns = now_ns();        /* before the exits of its ranks are counted */
    job_give_up_ranks(j, n);
    if (j->state == JOB_GATHERING && !j->instead &&
        (job_is_spare(j, node) || job_survives_start(j))) {
        OWNED char *line = xasprintf("%s: %s", n->host->name, why);
        job_node_failed(j, node, line);
        leave_node(j, node, why);
        return;
    }
    j->store_lost |= job_has_store(j, node);
    bool ends_job = j->state < JOB_LEAVING && !(j->instead && j->state == JOB_PREPARING);
    JOB_HOOKS(j, node_lost, node, why);
    OWNED char *text = xasprintf("%s is lost: %s", n->host->name, why);
    if (ends_job && j->plan && n->place < 0) {
        log_warn("the %s node %s", job_is_spare(j, node) ? "spare" : "unused", text);
    } else if (comes_too_late(j)) {
        bool whole = has_all_output(j, n);
        log_warn("%s; its ranks had ended%s", text,
                 whole ? "" : ", but the last of their output is missing");
        j->streams.failed |= !whole;
    } else if (ends_job && !is_claimed(j, node, why)) {
        job_fail(j, (struct cause){.kind = CAUSE_NODE,
                                   .rank = -1,
                                   .code = EXIT_CANNOT_START,
                                   .at_ns = at_ns,
                                   .text = text,
                                   .replaceable = j->output && job_can_replace(j)});
        text = NULL;
    }
    leave_node(j, node, why);
}

void job_drop_link(struct job *j, struct link *l, const char *why)
{
    unsigned first = job_forget_link(j, l);
    bool joined = j->nodes[first].joined; /* another agent may be started there at once */
    log_debug("the link to %s is closed: %s", j->nodes[first].host->name, why);
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (j->nodes[i].via != l)
            continue;
        j->nodes[i].via = NULL;
        if (j->state < JOB_LEAVING)
            job_node_lost(j, i, why);
    }
    link_close(l);
    if (!joined)
        start_failed(j, first, why);
    job_check(j);
}

void job_dismiss_leaving(struct job *j)
{
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        struct job_node *n = &j->nodes[i];
        bool idle = n->place < 0 && j->state != JOB_GATHERING && !job_has_store(j, i);
        if (!n->leaving || !idle || !n->via || n->lost)
            continue;
        n->lost = true;
        leave_node(j, i, "it is no longer offered");
    }
}
