/* launcher/agent/rank_env.c - see rank_env.h */
#define LOG_SUBSYS "ranks"
#include "launcher/agent/rank_env.h"

#include "common/log.h"
#include "common/mem.h"
#include "launcher/agent/hooks.h"
#include "launcher/contract.h"

#include <stdlib.h>

static void on_env_note(const struct env_note *n, void *arg)
{
    static const char *const what[] = {"set", "replaced", "kept as it was", "removed"};
    const struct agent *a = arg;
    if (n->user && n->origin == ENV_REPLACED && a->share.node_rank == 0)
        log_warn("-x %s=%s is ignored: ddprun sets it for each rank", n->name, n->old);
    else if (n->origin != ENV_SET)
        log_info("environment: %s %s%s%s%s", n->name, what[n->origin],
                 n->old ? " ('" : "", n->old ? n->old : "", n->old ? "')" : "");
}

static const char tf_format[] = "{\"cluster\": {\"worker\": [%s]}, \"task\": "
                                "{\"type\": \"worker\", \"index\": %u}}";

void rank_env_make(struct agent *a, const struct prepare *prep, uint32_t local, bool note,
                   struct strv *env)
{
    const struct msg_job *job = &a->job;
    const struct share_rank *sr = &a->share.ranks[local];
    const struct binding *b = &prep->bindings[local];
    char *tf_config =
        job->tf_workers ? xasprintf(tf_format, job->tf_workers, sr->rank) : NULL;
    struct rank_facts facts = {
        .node_list = job->node_list,
        .tasks_per_node = job->tasks_per_node,
        .tf_config = tf_config,
        .tracker_port = (int)job->tracker_port,
        .rank = (int)sr->rank,
        .size = (int)job->nranks,
        .local_rank = (int)local,
        .local_size = (int)a->share.nlocal,
        .node_rank = (int)a->share.node_rank,
        .nnodes = (int)job->nnodes,
        .grows = job->grows,
        .cross_rank = (int)sr->cross_rank,
        .cross_size = (int)sr->cross_size,
        .hostname = a->share.host,
        .master_addr = job->master_addr,
        .master_port = (int)job->master_port,
        .rank0_port = (int)job->rank0_port,
        .job_id = job->id,
        .restart_count = (int)job->attempt,
        .max_restarts = (int)job->max_restarts,
        .ncpus = b->ncpus,
        .gpu = b->gpu_text,
        .interface = job->interface,
        .gloo_interface = prep->gloo_interface,
        .columns = (int)job->columns,
        .rank_names = job->rank_names,
        .store = (enum store_mode)job->store_mode,
    };
    AGENT_HOOKS(a, rank_facts, local, &facts);
    contract_apply(&facts, &prep->base, env, note ? on_env_note : NULL, a);
    free(tf_config);
    AGENT_HOOKS(a, rank_env, local, env);
    strv_env_set_all(env, &sr->env);
}
