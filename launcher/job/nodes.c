/* launcher/job/nodes.c - the links to agents, and which nodes are reached over each
 *
 * In a launch tree, a link leads to its agent's node and to all nodes below it.
 */
#include "launcher/job/nodes.h"

#include "common/mem.h"
#include "launcher/job/plugin.h"
#include "launcher/job/states.h"

#include <stdlib.h>
#include <utlist.h>

struct job_link {
    struct link *link; /* owned */
    unsigned node;     /* whose agent is at its other end */
    struct job_link *next;
};

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

bool job_link_leads(const struct job *j, const struct link *l)
{
    return ANY_NODE(j, n, n->via == l && !n->lost);
}

void job_send(struct job *j, unsigned node, enum msg_type type, const void *m)
{
    if (node != NODE_ALL) {
        if (job_node_connected(&j->nodes[node]))
            link_send_msg(j->nodes[node].via, node, type, m);
        return;
    }
    SCOPED(pack_finish) struct pack k = {0};
    msg_pack(type, m, &k);
    const struct job_link *jl;
    LL_FOREACH (j->links, jl) {
        const struct job_node *n = &j->nodes[jl->node];
        if ((n->via == jl->link && !n->lost) || job_link_leads(j, jl->link))
            link_send_pack(jl->link, type, NODE_ALL, &k);
    }
}

bool job_node_takes_part(const struct job_node *n)
{
    return job_node_connected(n) && n->place >= 0;
}

unsigned job_ask(struct job *j, enum msg_type type, const void *m)
{
    job_send(j, NODE_ALL, type, m);
    return COUNT_NODES(j, n, job_node_takes_part(n));
}

static void on_frame(struct link *l, const struct frame *f, void *arg)
{
    struct job *j = arg;
    j->table->frame(j, l, f);
}

unsigned job_forget_link(struct job *j, struct link *l)
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

static void on_link_closed(struct link *l, const char *why, void *arg)
{
    struct job *j = arg;
    j->table->link_closed(j, l, why ? why : "its agent has ended");
}

struct link *job_add_link(struct job *j, int fd, const struct link_keys *keys,
                          unsigned node)
{
    static const struct link_events events = {on_frame, on_link_closed};
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
