/* launcher/plugins/health/health_job.c - --health-check, on the launcher's side
 *
 * Every host runs the command when it has joined and before each attempt, and gets no
 * rank before its answer. One that fails is lost: a spare, or another host, takes its
 * place. Without a command only hosts with GPUs are asked, and only between attempts.
 */
#include "launcher/job/plugin.h"
#include "launcher/plugins/plugins.h"

#include "common/duration.h"
#include "common/mem.h"
#include "launcher/job/events.h"
#include "launcher/place/bind.h"

#include <stdlib.h>

/* ms: beyond --health-timeout, for the answer of an agent that hangs */
enum { ANSWER_MS = 10000 };

struct health {
    struct job *j; /* borrowed */
    char *command; /* owned: in the job's directory; NULL: none is given */
    struct check {
        int64_t asked_ms; /* 0: no answer is due */
        uint32_t number;
    } * checks;     /* owned, by node: the last one */
    uint32_t asked; /* number of the last check */
    bool checked;   /* all were asked since the last attempt */
};

/* On this machine alone agents say nothing of theirs. */
static bool has_gpus(const struct job_node *n)
{
    return n->host->local ? topo_gpus() > 0 : n->hello.ngpus > 0;
}

/* A host that is lost, or dismissed, gives no answer. */
static bool is_due(const struct health *h, unsigned node)
{
    return h->checks[node].asked_ms > 0 && job_node_connected(&h->j->nodes[node]);
}

static void ask(struct health *h, unsigned node)
{
    if (is_due(h, node) || (!h->command && !has_gpus(&h->j->nodes[node])))
        return;
    h->checks[node] = (struct check){now_ms(), ++h->asked};
    job_node_hold(h->j, node);
    job_begin_timeout(h->j);
    job_send(h->j, node,
             MSG(check, .id = h->asked, .command = h->command,
                 .limit_ms = (uint32_t)h->j->opts->health_timeout_ms));
}

static void on_node_joined(void *state, unsigned node)
{
    struct health *h = state;
    h->checks[node].asked_ms = 0;
    if (h->command)
        ask(h, node);
}

static void end_check(struct health *h, unsigned node, const char *trouble)
{
    struct job *j = h->j;
    h->checks[node].asked_ms = 0;
    if (!trouble) {
        job_node_release(j, node);
        return;
    }
    event_emit(j, "health_failed", "{s:i, s:o, s:o}", "node", (int)node, "host",
               event_text(j->nodes[node].host->name), "why", event_text(trouble));
    OWNED char *why = h->command
                          ? xasprintf("its health check %s (--health-check)", trouble)
                          : xasprintf("the check of its GPUs %s", trouble);
    job_node_lost(j, node, why);
}

static int handle_checked(void *state, unsigned node, const struct frame *f,
                          struct ddp_err *err)
{
    struct health *h = state;
    const struct msg_checked *m = f->m;
    if (is_due(h, node) && m->id == h->checks[node].number)
        end_check(h, node, m->trouble);
    return 0;
}

static void on_tick(void *state)
{
    struct health *h = state;
    int64_t limit_ms = h->j->opts->health_timeout_ms + ANSWER_MS;
    for (unsigned i = 0; i < h->j->alloc->nnodes; i++) {
        if (is_due(h, i) && now_ms() - h->checks[i].asked_ms > limit_ms)
            end_check(h, i, "has not been answered");
    }
}

/* Elsewhere a host with a check is one that cannot be used yet. */
static bool on_may_restart(void *state)
{
    struct health *h = state;
    bool due = false;
    for (unsigned i = 0; i < h->j->alloc->nnodes; i++) {
        const struct job_node *n = &h->j->nodes[i];
        if (!h->checked && n->joined && job_node_connected(n))
            ask(h, i);
        due |= is_due(h, i);
    }
    h->checked = true;
    return !due;
}

static void on_next_attempt(void *state)
{
    ((struct health *)state)->checked = false;
}

/* --- life --------------------------------------------------------------------------- */

static int on_init(void *state, struct ddp_err *err)
{
    struct health *h = state;
    struct job *j = h->j;
    bool restarts = j->restart.max > 0 || j->restart.spares != 0;
    if (j->opts->preflight || (!j->opts->health_check && !restarts))
        return 1;
    h->checks = xcalloc(j->alloc->nnodes, sizeof *h->checks);
    if (j->opts->health_check)
        job_ask_agents(j);
    return 0;
}

static int on_open(void *state, struct ddp_err *err)
{
    struct health *h = state;
    if (!h->j->opts->health_check)
        return 0;
    OWNED char *dir = shell_quote(h->j->job.wdir);
    h->command = xasprintf("cd %s 2>/dev/null; %s", dir, h->j->opts->health_check);
    return 0;
}

static void on_fini(void *state)
{
    struct health *h = state;
    free(h->command);
    free(h->checks);
}

static const struct job_message messages[] = {{MSG_CHECKED, handle_checked}, {0}};

const struct job_plugin health_job = {
    .name = "health",
    .state_size = sizeof(struct health),
    .init = on_init,
    .open = on_open,
    .fini = on_fini,
    .node_joined = on_node_joined,
    .may_restart = on_may_restart,
    .next_attempt = on_next_attempt,
    .tick = on_tick,
    .messages = messages,
};
