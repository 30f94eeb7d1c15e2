/* launcher/plugins/error_file/error_agent.c - TORCHELASTIC_ERROR_FILE
 *
 * Each rank gets a file for its exception. What a failed one has written there reaches
 * the launcher before its exit does, and stands in the report. One that was told to end
 * is no cause.
 */
#include "common/mem.h"
#include "launcher/agent/plugin.h"
#include "launcher/plugins/error_file/error_file.h"
#include "launcher/plugins/plugins.h"

#include <stdlib.h>
#include <string.h>

struct error_node {
    struct agent *agent;        /* borrowed */
    uint32_t nranks;            /* of this node */
    int *files;                 /* owned, by local rank; -1: none */
    char path[ERROR_FILE_PATH]; /* of the last rank asked for */
};

static void drop(struct error_node *s, uint32_t local)
{
    loop_close_later(s->agent->loop, &s->files[local]);
}

static void drop_all(void *state)
{
    struct error_node *s = state;
    for (uint32_t i = 0; i < s->nranks; i++)
        drop(s, i);
    free(s->files);
}

static int error_prepare(void *state, struct msg_job *job, struct ddp_err *err)
{
    struct error_node *s = state;
    drop_all(s); /* of the last attempt */
    s->nranks = s->agent->share.nlocal;
    s->files = xcalloc(s->nranks, sizeof *s->files);
    memset(s->files, 0xff, s->nranks * sizeof *s->files);
    return 0;
}

static void error_rank_facts(void *state, uint32_t local, struct rank_facts *facts)
{
    struct error_node *s = state;
    drop(s, local); /* of an environment that was not used */
    s->files[local] = error_file_open(s->path);
    facts->error_file = s->files[local] < 0 ? NULL : s->path;
}

static void error_rank_exited(void *state, uint32_t local, const struct msg_exit *how)
{
    struct error_node *s = state;
    OWNED char *text = how->status != 0 && !how->stopped && s->files[local] >= 0
                           ? error_file_read(s->files[local])
                           : NULL;
    if (text)
        agent_send(s->agent, MSG(error, how->rank, text));
    drop(s, local);
}

const struct agent_plugin error_file_agent = {
    .name = "error_file",
    .state_size = sizeof(struct error_node),
    .fini = drop_all,
    .prepare = error_prepare,
    .rank_facts = error_rank_facts,
    .rank_exited = error_rank_exited,
};
