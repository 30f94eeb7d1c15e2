/* launcher/job/job_shape.c - see job_shape.h */
#include "launcher/job/job_shape.h"

#include "common/mem.h"
#include "launcher/opts.h"

#include <stdlib.h>

/* Variables longer than 128 KiB cannot be passed to a program. */
enum { SHOWN_NODES = 1024, ENDPOINTS = 2048 };

/* TensorFlow and PaddlePaddle need a port of each rank before any of them listens, and
 * XGBoost's tracker needs one. They are not reserved but computed from the job's id,
 * below the kernel's range for connections, so that concurrent jobs rarely collide. */
enum { TRACKER_PORTS = 10000, RANK_PORTS = 20000, PORTS = 10000 };

static unsigned named_port(const char *id)
{
    unsigned hash = 5381;
    for (; *id; id++)
        hash = hash * 33 + (unsigned char)*id;
    return hash % PORTS;
}

static void add_endpoints(struct msg_job *job, const struct plan *plan)
{
    unsigned port = RANK_PORTS + named_port(job->id);
    for (int r = 0; r < plan->nranks; r++) {
        const struct plan_rank *pr = &plan->ranks[r];
        const char *host =
            plan->nnodes == 1 ? "127.0.0.1" : plan->nodes[pr->node].host->name;
        xappendf(&job->endpoints, "%s%s:%u", r > 0 ? "," : "", host,
                 port + (unsigned)pr->local_rank);
    }
}

void job_shape(struct msg_job *job, const struct plan *plan)
{
    free(job->node_list);
    free(job->tasks_per_node);
    free(job->endpoints);
    job->node_list = job->tasks_per_node = job->endpoints = NULL;
    job->tracker_port = TRACKER_PORTS + named_port(job->id);
    for (int i = 0; plan->nnodes <= SHOWN_NODES && i < plan->nnodes; i++) {
        const char *comma = i > 0 ? "," : "";
        xappendf(&job->node_list, "%s%s", comma, plan->nodes[i].host->name);
        xappendf(&job->tasks_per_node, "%s%d", comma, plan->nodes[i].nlocal);
    }
    if (job->rank_names & (NAMES_TF | NAMES_PADDLE) && plan->nranks <= ENDPOINTS)
        add_endpoints(job, plan);
}
