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
#include "common/sock.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/ext_signals.h"
#include "launcher/agent/guard.h"
#include "launcher/link/bootstrap.h"
#include "launcher/link/handshake.h"
#include "launcher/transport/bootstrap_file.h"
#include "launcher/transport/child.h"
#include "launcher/transport/program.h"
#include "launcher/transport/transport.h"
#include "launcher/transport/transport_proc.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* CONNECT_MS is for a network that is cut for a while, and less than --start-timeout */
enum {
    BOOTSTRAP_MS = 30000,
    PARENT_MS = 10000,
    CONNECT_MS = 30000,
    STDIO_MS = 4000,
    PAUSE_MS = 250
};

/* `name`: this host's, NULL until it is known: several agents may share a stderr. */
static int failed(const char *name, const struct ddp_err *err)
{
    fprintf(stderr, "ddprun-agent: %s%s%s\n", name ? name : "", name ? ": " : "",
            err->text);
    return EXIT_CANNOT_START;
}

/* How the launcher is reached. */
struct reached {
    int fd;
    bool stdio;     /* ... by stdin and stdout */
    bool announced; /* TRANSPORT_PROC_LINK was written: the launcher may use them later */
};

/* Fallback: use stdin and stdout, which ssh forwards, as the link. Announces that with
 * TRANSPORT_PROC_LINK: the parent may then close them, if it is reached by TCP after all.
 * -1 with errno: the parent did not accept. */
static int connect_by_stdio(const struct bootstrap *s, struct reached *r,
                            int64_t deadline_ms, struct link_keys *keys)
{
    static const char line[] = TRANSPORT_PROC_LINK;
    int64_t until = now_ms() + STDIO_MS;
    struct ddp_err err;
    if (!r->announced) {
        sock_set_nonblock(STDIN_FILENO, true);
        sock_set_nonblock(STDOUT_FILENO, true);
        r->announced = true;
        if (sock_write_all(STDOUT_FILENO, line, sizeof line - 1, until) < 0)
            return -1;
    }
    return bootstrap_prove(s, STDIN_FILENO, STDOUT_FILENO, until, deadline_ms, keys, &err);
}

/* Something may accept connections and close them at once. False: the starter has closed
 * stdin. */
static bool pause_calls(const struct bootstrap *s, int64_t deadline_ms)
{
    int64_t until = now_ms() + PAUSE_MS < deadline_ms ? now_ms() + PAUSE_MS : deadline_ms;
    char c;
    if (!s->detached && sock_await(STDIN_FILENO, POLLIN, until) == 0)
        return read(STDIN_FILENO, &c, 1) > 0;
    sleep_ms(until - now_ms());
    return true;
}

/* Where nothing answers the network may be cut for a while: this tries again until the
 * deadline, unless the starter has closed stdin. */
static int reach_launcher(const struct bootstrap *s, struct reached *r,
                          struct link_keys *keys, struct ddp_err *err)
{
    int64_t deadline_ms = now_ms() + CONNECT_MS;
    const char *from = getenv("SLURM_LAUNCH_NODE_IPADDR");
    if (s->nodes.n == 0 || !from)
        from = getenv("SSH_CONNECTION");
    bool silent;
    do {
        r->fd = bootstrap_connect(s, from, deadline_ms, keys, err);
        if (r->fd >= 0)
            return 0;
        silent = errno == ETIMEDOUT;
        r->stdio = s->stdio && connect_by_stdio(s, r, deadline_ms, keys) == 0;
        if (r->stdio)
            return 0;
        if (silent)
            silent = s->stdio ? errno == ETIMEDOUT : pause_calls(s, deadline_ms);
    } while (silent && now_ms() < deadline_ms);
    return -1;
}

static int be_agent(int guard, void *arg)
{
    struct bootstrap *s = arg;
    struct ddp_err err;
    struct link_keys keys;
    struct secret key = s->key;
    if (s->of_job)
        handshake_node_key(&s->key, s->node, &key);
    struct reached r = {.fd = -1};
    if (s->parent.name) {
        r.fd = bootstrap_connect_parent(s, now_ms() + PARENT_MS, &keys, &err);
        if (r.fd < 0)
            log_info("%s: %s; calling the launcher instead", s->parent.name, err.text);
    }
    if (r.fd < 0 && reach_launcher(s, &r, &keys, &err) < 0)
        return failed(s->name, &err);
    if (r.stdio)
        log_info("%s; over ssh instead", err.text);
    struct agent_setup setup = {
        .fd = r.stdio ? STDIN_FILENO : r.fd,
        .stdio = r.stdio,
        .node = s->node,
        .keys = &keys,
        .relays = true,
        .listen = s->listen,
        .key = &key,
        .lifelines = {s->detached || r.announced ? -1 : STDIN_FILENO, guard},
        .log_level = s->log_level};
    return agent_run(&setup);
}

/* Slurm may start several tasks of the step on a node (transport/srun.c): task 0 is the
 * agent. */
static bool is_spare(int argc, char **argv)
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
    if (rc < 0 || s->nodes.n == 0)
        return rc;
    srun_unset_settings(); /* the ranks must not inherit them */
    /* Slurm's name for the node first: it may differ from the host name */
    const char *slurm = getenv("SLURMD_NODENAME");
    gethostname(own, sizeof own - 1);
    if ((slurm && bootstrap_take_node(s, slurm)) || bootstrap_take_node(s, own))
        return 0;
    return err_set(err, "there is no work for a host called '%s'", slurm ? slurm : own);
}

int main(int argc, char **argv)
{
    struct ddp_err err;
    struct bootstrap s = {0};
    const char *path = argc == 3 && strcmp(argv[1], "--bootstrap") == 0 ? argv[2] : NULL;
    mem_init();
    child_signals_reset();
    if (is_spare(argc, argv))
        return 0;
    if (argc > 1 && !path && strcmp(argv[1], "--once-per-node") != 0) {
        printf("ddprun-agent %s: started by ddprun on each host, not by users\n",
               DDPRUN_VERSION);
        return strcmp(argv[1], "--version") == 0 ? 0 : 2;
    }
    ext_signals_hold();
    int code;
    if (child_init(&err) < 0 || read_bootstrap(path, &s, &err) < 0 ||
        log_setup("ddprun", s.name, s.log_level, &err) < 0)
        code = failed(s.name, &err);
    else
        code = guard_part(be_agent, &s, argv[0]);
    child_finish();
    bootstrap_finish(&s);
    return code;
}
