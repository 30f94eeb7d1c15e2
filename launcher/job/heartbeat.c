/* launcher/job/heartbeat.c - node liveness and clock offsets
 *
 * One ping per beat to all nodes. A node that is silent for --node-timeout is declared
 * lost (link/heartbeat.h).
 *
 * The offset of a node's clock, by which the exits of ranks on different nodes are
 * ordered, is taken from its HELLO first, and then from the reply to a ping with the
 * shortest round-trip time (RTT). Replies to the pings to all may be merged on their way,
 * so PROBES nodes a beat, in turn, get a ping of their own, too; those without an agent
 * in between also when they join. The agent that we have forked has our clock.
 */
#define LOG_SUBSYS "heartbeat"
#include "launcher/job/heartbeat.h"

#include "common/ancestry.h"
#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/job/describe.h"
#include "launcher/job/plugin.h"

#include <string.h>

enum { PROBES = 8 };

void job_ping(struct job *j, unsigned node)
{
    job_send(j, node, MSG(ping, now_ns(), (uint32_t)j->opts->node_timeout_ms));
}

int job_handle_pong(struct job *j, unsigned node, const struct frame *f,
                    struct ddp_err *err)
{
    const struct msg_pong *m = f->m;
    struct job_node *n = &j->nodes[node];
    int64_t rtt = now_ns() - m->sent_ns;
    if (rtt < 0 || m->sent_ns <= 0)
        return err_set(err, "a pong without a ping");
    if (n->via != j->local && (n->best_rtt_ns == 0 || rtt < n->best_rtt_ns)) {
        n->best_rtt_ns = rtt;
        n->ahead_ns = m->at_ns - m->sent_ns - rtt / 2;
        log_debug("%s: clock %.3f ms ahead, RTT %.3f ms", n->host->name,
                  (double)n->ahead_ns / 1e6, (double)rtt / 1e6);
    }
    return 0;
}

int job_handle_late(struct job *j, unsigned node, const struct frame *f,
                    struct ddp_err *err)
{
    j->nodes[node].late_ms = ((const struct msg_late *)f->m)->ms;
    return 0;
}

/* What to look at. The agent of this machine is a child of ours, which may be stopped. */
static char *look_at(const struct job *j, unsigned node)
{
    struct ancestry_proc p;
    if (j->nodes[node].via != j->local || !job_forks_agent(j, node))
        return xstrdup("is it up, and the network to it?");
    bool stopped = ancestry_read(j->local_pid, &p) && strchr("Tt", p.state);
    return xasprintf("its agent, process %d, %s", (int)j->local_pid,
                     stopped ? "is stopped (SIGSTOP or a debugger)" : "does not answer");
}

static void on_beat(void *arg)
{
    struct job *j = arg;
    job_ping(j, NODE_ALL);
    for (unsigned i = 0; i < PROBES && i < j->alloc->nnodes; i++)
        job_ping(j, j->beats.next_probe++ % (unsigned)j->alloc->nnodes);
    for (unsigned i = 0; i < j->alloc->nnodes && j->state < JOB_LEAVING; i++) {
        struct job_node *n = &j->nodes[i];
        if (!job_node_connected(n) ||
            !heartbeat_silent(j->beats.heartbeat, &n->silence, n->heard_ms))
            continue;
        OWNED char *look = look_at(j, i);
        OWNED char *why =
            xasprintf("nothing heard from it for %.4g s (--node-timeout); %s",
                      (double)j->opts->node_timeout_ms / 1e3, look);
        job_node_lost(j, i, why);
    }
}

void job_start_heartbeat(struct job *j)
{
    j->beats.heartbeat = heartbeat_create(j->loop, j->opts->node_timeout_ms, on_beat, j);
}
