/* launcher/agent/main.c - ddprun-agent: the agent of a host, and its guard (guard.h)
 *
 * Started by ssh or a scheduler. It reads its bootstrap data and forks; the child becomes
 * the agent.
 */
#define LOG_SUBSYS "agent"
#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/connect.h"
#include "launcher/agent/ext_signals.h"
#include "launcher/agent/guard.h"
#include "launcher/link/bootstrap.h"
#include "launcher/link/handshake.h"
#include "launcher/transport/bootstrap_file.h"
#include "launcher/transport/child.h"
#include "launcher/transport/program.h"
#include "launcher/transport/transport.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BOOTSTRAP_MS = 30000, PARENT_MS = 10000 };

/* `name`: this host's, NULL until it is known: several agents may share a stderr. */
static int failed(const char *name, const struct ddp_err *err)
{
    fprintf(stderr, "ddprun-agent: %s%s%s\n", name ? name : "", name ? ": " : "",
            err->text);
    return EXIT_CANNOT_START;
}

static int be_agent(int guard, void *arg)
{
    struct bootstrap *s = arg;
    struct ddp_err err;
    struct connected c = {.fd = -1};
    if (s->parent.name) {
        c.fd = bootstrap_connect_parent(s, now_ms() + PARENT_MS, &c.keys, &err);
        if (c.fd < 0)
            log_info("%s: %s; calling the launcher instead", s->parent.name, err.text);
    }
    if (c.fd < 0 && connect_launcher(s, &c, &err) < 0)
        return failed(s->name, &err);
    struct agent_setup setup = {
        .fd = c.fd,
        .stdio = c.fd == STDIN_FILENO,
        .node = s->node,
        .keys = &c.keys,
        .relays = true,
        .listen = s->listen,
        .key = &s->key,
        .lifelines = {s->detached || c.announced ? -1 : STDIN_FILENO, guard},
        .log_level = s->log_level};
    return agent_run(&setup);
}

/* Slurm may start several tasks of the step on a node (transport/srun.c): the first is
 * the agent, the others exit. */
static bool is_extra_task(int argc, char **argv)
{
    const char *id = getenv("SLURM_LOCALID");
    return argc == 2 && strcmp(argv[1], "--once-per-node") == 0 && id &&
           strcmp(id, "0") != 0;
}

static int read_bootstrap(const char *path, struct bootstrap *s, struct ddp_err *err)
{
    char own[HOST_NAME_MAX + 1] = "";
    int rc = path ? bootstrap_file_read(path, s, err)
                  : bootstrap_read(STDIN_FILENO, now_ms() + BOOTSTRAP_MS, s, err);
    if (rc < 0 || s->nnodes == 0)
        return rc;
    srun_unset_settings(); /* the ranks must not inherit them */
    /* Slurm's name for the node first: it may differ from the host name */
    const char *slurm = getenv("SLURMD_NODENAME");
    gethostname(own, sizeof own - 1);
    if (!(slurm && bootstrap_take_node(s, slurm)) && !bootstrap_take_node(s, own))
        return err_set(err, "there is no work for a host called '%s'",
                       slurm ? slurm : own);
    handshake_node_key(&s->key, s->node, &s->key); /* it was the job's */
    return 0;
}

int main(int argc, char **argv)
{
    struct ddp_err err;
    struct bootstrap s = {0};
    const char *path = argc == 3 && strcmp(argv[1], "--bootstrap") == 0 ? argv[2] : NULL;
    mem_init();
    child_signals_reset();
    if (is_extra_task(argc, argv))
        return 0;
    if (argc > 1 && !path && strcmp(argv[1], "--once-per-node") != 0) {
        printf("ddprun-agent %s: started by ddprun on each host, not by users\n",
               DDPRUN_VERSION);
        return strcmp(argv[1], "--version") == 0 ? 0 : 2;
    }
    ext_signals_hold();
    int code;
    if (child_init(&err) < 0 || read_bootstrap(path, &s, &err) < 0 ||
        log_setup("ddprun", s.name, s.log_level, &err) < 0) {
        code = failed(s.name, &err);
        if (s.missing)
            code = EXIT_NO_BOOTSTRAP;
    } else {
        code = guard_part(be_agent, &s, argv[0]);
    }
    child_finish();
    bootstrap_finish(&s);
    return code;
}
