/* launcher/plugins/store/store_agent.c - the job's store, on the nodes' side
 *
 * The agent of rank 0's node hosts it (store_host.h). Every agent vouches for connections
 * that come from its machine.
 */
#define LOG_SUBSYS "store"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/admission/admission.h"
#include "launcher/agent/plugin.h"
#include "launcher/plugins/plugins.h"
#include "launcher/plugins/store/store_host.h"
#include "launcher/transport/program.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct store_node {
    struct agent *agent;     /* borrowed */
    struct store_host *host; /* owned; NULL except on the master node */
    bool alone;              /* it is for ranks of this node only */
};

static void ask_vouch(const struct msg_vouch *v, void *arg)
{
    agent_send(arg, MSG_VOUCH, v);
}

static void serve(struct store_node *s, const struct msg_store *want)
{
    struct ddp_err err;
    int rc = 0;
    if (s->host && s->alone && !want->alone) { /* the job has grown */
        store_host_destroy(s->host);
        s->host = NULL;
    }
    if (s->host)
        rc = store_host_renew(s->host, &err);
    else
        s->host = store_host_create(s->agent->loop, want, agent_admission(s->agent),
                                    ask_vouch, s->agent, &err);
    s->alone = want->alone;
    if (!s->host || rc < 0) {
        agent_cannot(s->agent, UINT32_MAX, EXIT_CANNOT_START, err.text);
        return;
    }
    agent_send(s->agent, MSG(store_ready, msg_text(store_host_addr(s->host)),
                             (uint32_t)store_host_port(s->host),
                             (uint32_t)store_host_rank0_port(s->host)));
}

static int handle_store(void *state, const struct frame *f, struct ddp_err *err)
{
    struct store_node *s = state;
    if (s->host && s->agent->state != AGENT_ENDED)
        return err_set(err, "a second 'store'");
    serve(s, f->m);
    return 0;
}

/* In a job on this machine alone, only this agent knows the port. */
static int store_prepare(void *state, struct msg_job *job, struct ddp_err *err)
{
    const struct store_node *s = state;
    if (job->master_port)
        return 0;
    if (!s->host)
        return err_set(err, "the store has no port");
    free(job->master_addr);
    job->master_addr = xstrdup(store_host_addr(s->host));
    job->master_port = (uint32_t)store_host_port(s->host);
    job->rank0_port = (uint32_t)store_host_rank0_port(s->host);
    return 0;
}

static int handle_vouch(void *state, const struct frame *f, struct ddp_err *err)
{
    struct store_node *s = state;
    const struct msg_vouch *m = f->m;
    struct verdict verdicts[VOUCH_MAX];
    for (uint32_t i = 0; i < m->n; i++) {
        const struct question *q = &m->list[i];
        struct ddp_err why = {""};
        bool yes =
            admission_check(agent_admission(s->agent), (const struct sockaddr *)&q->peer,
                            (const struct sockaddr *)&q->local, &why) == 0;
        verdicts[i] = (struct verdict){q->id, yes, yes ? NULL : xstrdup(why.text)};
    }
    agent_send(s->agent, MSG(vouched, verdicts, m->n));
    for (uint32_t i = 0; i < m->n; i++)
        free(verdicts[i].why);
    return 0;
}

static int handle_vouched(void *state, const struct frame *f, struct ddp_err *err)
{
    struct store_node *s = state;
    if (s->host)
        store_host_vouched(s->host, f->m);
    return 0;
}

static void store_fini(void *state)
{
    struct store_node *s = state;
    store_host_destroy(s->host);
    free(s);
}

static const struct agent_message messages[] = {
    {MSG_STORE, handle_store},
    {MSG_VOUCH, handle_vouch},
    {MSG_VOUCHED, handle_vouched},
    {0},
};

const struct agent_plugin store_agent = {
    .name = "store",
    .state_size = sizeof(struct store_node),
    .fini = store_fini,
    .prepare = store_prepare,
    .messages = messages,
};
