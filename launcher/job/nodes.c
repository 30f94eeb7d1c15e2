/* launcher/job/nodes.c - the links to agents, and which nodes are reached over each
 *
 * In a launch tree, a link leads to its agent's node and to all nodes below it.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/job_impl.h"

#include "common/duration.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/transport/program.h"

#include <stdlib.h>
#include <utlist.h>

bool job_node_connected(const struct job_node *n)
{
    return n->via && !n->lost;
}

bool job_is_direct(const struct job *j, unsigned node)
{
    struct job_link *jl;
    LL_SEARCH_SCALAR(j->links, jl, link, j->nodes[node].via);
    return jl && jl->node == node;
}

int job_ranks_on(const struct job *j, const struct job_node *n)
{
    return j->plan && n->place >= 0 ? j->plan->nodes[n->place].nlocal : 0;
}

/* Does `l` lead to a node that is not lost? */
static bool has_live_node(const struct job *j, const struct link *l)
{
    for (size_t i = 0; i < j->alloc->nnodes; i++) {
        if (j->nodes[i].via == l && !j->nodes[i].lost)
            return true;
    }
    return false;
}

void job_send(struct job *j, unsigned node, enum msg_type type, const void *m)
{
    if (node != NODE_ALL) {
        if (job_node_connected(&j->nodes[node]))
            link_send_msg(j->nodes[node].via, node, type, m);
        return;
    }
    struct pack k = {0};
    msg_pack(type, m, &k);
    const struct job_link *jl;
    LL_FOREACH (j->links, jl) {
        const struct job_node *n = &j->nodes[jl->node];
        if ((n->via == jl->link && !n->lost) || has_live_node(j, jl->link))
            link_send_pack(jl->link, type, NODE_ALL, &k);
    }
    pack_finish(&k);
}

/* Its agent ends with the link, unless others are reached over it. */
static void leave_node(struct job *j, unsigned node, const char *why)
{
    struct link *via = j->nodes[node].via;
    if (via && !has_live_node(j, via))
        job_drop_link(j, via, why);
    else
        job_check(j);
}

/* All ranks have exited with 0, and only the rest of the output is waited for. */
static bool comes_too_late(const struct job *j)
{
    return j->state == JOB_DRAINING && j->cause.kind == CAUSE_NONE && job_losses(j) != 0;
}

void job_node_lost(struct job *j, unsigned node, const char *why)
{
    struct job_node *n = &j->nodes[node];
    if (n->lost)
        return;
    n->lost = true;
    n->unlisted |= j->peers != NULL; /* its ddprun ends, and does not come back */
    int64_t at_ns = now_ns(); /* before the exits of its ranks are counted */
    for (int i = 0; i < job_ranks_on(j, n); i++) {
        struct job_rank *r = &j->ranks[j->plan->nodes[n->place].ranks[i]];
        if (r->state == RANK_EXITED)
            continue;
        r->state = RANK_EXITED;
        r->end_unknown = true;
        job_count_exit(j);
    }
    if (j->state == JOB_GATHERING && !j->instead &&
        (job_is_spare(j, node) || job_survives_start(j))) {
        char *line = xasprintf("%s: %s", n->host->name, why);
        job_node_unfit(j, node, line);
        free(line);
        leave_node(j, node, why);
        return;
    }
    bool ends_job = j->state < JOB_LEAVING && !(j->instead && j->state == JOB_PREPARING);
    JOB_HOOKS(j, node_lost, node, why);
    char *text = xasprintf("%s is lost: %s", n->host->name, why);
    if (ends_job && j->plan && n->place < 0 && job_is_spare(j, node)) {
        log_warn("the spare node %s", text);
        free(text);
    } else if (comes_too_late(j)) {
        log_warn("%s; its ranks had ended, but the last of their output may be missing",
                 text);
        free(text);
    } else if (ends_job) {
        job_fail(j, (struct cause){.kind = CAUSE_NODE,
                                   .rank = -1,
                                   .code = EXIT_CANNOT_START,
                                   .at_ns = at_ns,
                                   .text = text,
                                   .replaceable = j->output && job_can_replace(j)});
    } else {
        free(text);
    }
    leave_node(j, node, why);
}

void job_node_dismiss(struct job *j, unsigned node, const char *why)
{
    j->nodes[node].lost = true;
    leave_node(j, node, why);
}

static void on_frame(struct link *l, const struct frame *f, void *arg)
{
    job_handle_frame(arg, l, f);
}

/* Returns the node whose agent is at its other end. */
static unsigned forget_link(struct job *j, struct link *l)
{
    struct job_link *jl;
    LL_SEARCH_SCALAR(j->links, jl, link, l);
    LL_DELETE(j->links, jl);
    unsigned node = jl->node;
    free(jl);
    if (l == j->local)
        j->local = NULL;
    return node;
}

void job_drop_link(struct job *j, struct link *l, const char *why)
{
    unsigned first = forget_link(j, l);
    log_debug("the link to %s is closed: %s", j->nodes[first].host->name, why);
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (j->nodes[i].via != l)
            continue;
        j->nodes[i].via = NULL;
        if (j->state < JOB_LEAVING)
            job_node_lost(j, i, why);
    }
    link_close(l);
    if (!j->nodes[first].joined)
        job_start_failed(j, first, why);
    job_check(j);
}

static void on_link_closed(struct link *l, const char *why, void *arg)
{
    job_drop_link(arg, l, why ? why : "its agent has ended");
}

struct link *job_add_link(struct job *j, int fd, const struct link_keys *keys,
                          unsigned node)
{
    static const struct link_events events = {on_frame, on_link_closed, NULL};
    struct job_link *jl = xcalloc(1, sizeof *jl);
    jl->node = node;
    jl->link = link_create(j->loop, fd, FRAME_UP, keys, &events, j);
    LL_PREPEND(j->links, jl);
    return jl->link;
}

void job_close_links(struct job *j)
{
    struct job_link *jl, *next;
    LL_FOREACH_SAFE(j->links, jl, next)
    {
        link_destroy(jl->link);
        free(jl);
    }
    j->links = NULL;
}
