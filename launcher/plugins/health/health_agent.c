/* launcher/plugins/health/health_agent.c - --health-check, on the nodes' side
 *
 * Runs ddprun-gpus and then the command, in a child process, also while ranks run or are
 * being stopped: on a spare that has just joined.
 */
#include "launcher/agent/plugin.h"
#include "launcher/plugins/plugins.h"

#include "common/installed.h"
#include "common/mem.h"
#include "launcher/place/bind.h"
#include "launcher/transport/shell_command.h"

#include <stdlib.h>
#include <unistd.h>

enum { OUTPUT_MOST = 1 << 20 }; /* bytes, which are not used */

struct health_node {
    struct agent *agent;           /* borrowed */
    struct shell_command *command; /* owned; NULL: does not run */
    uint32_t id;                   /* of the check */
};

static void answer(struct health_node *h, const char *trouble)
{
    agent_send(h->agent, MSG(checked, h->id, msg_text(trouble)));
}

static void on_ended(const char *trouble, const char *output, size_t size, void *arg)
{
    struct health_node *h = arg;
    shell_command_destroy(h->command);
    h->command = NULL;
    answer(h, trouble);
    agent_check(h->agent);
}

/* Returns what /bin/sh runs; NULL: nothing. */
static char *command_of(const struct msg_check *m)
{
    OWNED char *gpus =
        topo_gpus() > 0 ? installed_file(INSTALLED_PROGRAM, "ddprun-gpus", X_OK) : NULL;
    OWNED char *quoted = gpus ? shell_quote(gpus) : NULL;
    return quoted && m->command ? xasprintf("%s && {\n%s\n}", quoted, m->command)
           : quoted             ? xasprintf("exec %s", quoted)
                                : xstrdup(m->command);
}

static int handle_check(void *state, const struct frame *f, struct ddp_err *err)
{
    struct health_node *h = state;
    const struct msg_check *m = f->m;
    struct ddp_err why;
    OWNED char *text = command_of(m);
    const struct shell_command_spec spec = {
        .text = text, .limit_ms = m->limit_ms, .most = OUTPUT_MOST};
    shell_command_destroy(h->command);
    h->id = m->id;
    h->command = text ? shell_command_start(h->agent->loop, h->agent->reap, &spec,
                                            on_ended, h, &why)
                      : NULL;
    if (!h->command)
        answer(h, text ? why.text : NULL);
    return 0;
}

static void on_fini(void *state)
{
    shell_command_destroy(((struct health_node *)state)->command);
}

static void on_stop(void *state, bool again)
{
    struct health_node *h = state;
    if (again)
        return;
    shell_command_destroy(h->command); /* its answer is not needed any more */
    h->command = NULL;
}

static bool on_spares(const void *state, pid_t pid)
{
    const struct shell_command *c = ((const struct health_node *)state)->command;
    return pid ? shell_command_has(c, pid) : shell_command_group(c) > 0;
}

static const struct agent_message messages[] = {{MSG_CHECK, handle_check}, {0}};

const struct agent_plugin health_agent = {
    .name = "health",
    .state_size = sizeof(struct health_node),
    .fini = on_fini,
    .stop = on_stop,
    .spares = on_spares,
    .messages = messages,
};
