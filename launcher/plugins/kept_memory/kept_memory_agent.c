/* launcher/plugins/kept_memory/kept_memory_agent.c - DDPRUN_KEPT_MEMORY
 *
 * In a job that may restart, the ranks of a host get a file in their agent's memory. It
 * stays while the agent runs: the ranks of the next attempt find in it what those of the
 * last one left there. A memfd has no name and no folder: however agent and ranks end,
 * the kernel frees it, so there is nothing to clean up.
 */
#include "launcher/plugins/plugins.h"

#include "common/mem.h"
#include "launcher/agent/plugin.h"

#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

struct kept_node {
    struct agent *agent; /* borrowed */
    int fd;              /* owned; -1: none */
    char path[64];       /* "": none */
};

/* Without a descriptor the variable is not set, and a rank that needs it reports that. */
static int kept_prepare(void *state, struct msg_job *job, struct ddp_err *err)
{
    struct kept_node *s = state;
    if (s->fd >= 0 || job->max_restarts == 0)
        return 0;
    s->fd = memfd_create("ddprun-kept", MFD_CLOEXEC);
    if (s->fd >= 0)
        snprintf(s->path, sizeof s->path, "/proc/%d/fd/%d", (int)getpid(), s->fd);
    return 0;
}

static void kept_rank_facts(void *state, uint32_t local, struct rank_facts *facts)
{
    const struct kept_node *s = state;
    facts->kept_memory = *s->path ? s->path : NULL;
}

static void kept_init(void *state)
{
    ((struct kept_node *)state)->fd = -1;
}

static void kept_fini(void *state)
{
    struct kept_node *s = state;
    close_fd(&s->fd);
}

const struct agent_plugin kept_memory_agent = {
    .name = "kept_memory",
    .state_size = sizeof(struct kept_node),
    .init = kept_init,
    .fini = kept_fini,
    .prepare = kept_prepare,
    .rank_facts = kept_rank_facts,
};
