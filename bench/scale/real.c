/* bench/scale/real.c - the first node with its store, and the clients of that (sim.h) */
#include "bench/scale/sim.h"

#include "common/strv.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* The agent is the only child of its guard. */
static int agent_of(pid_t guard)
{
    char path[64];
    int pid = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)guard, (int)guard);
    FILE *f = fopen(path, "re");
    if (!f || fscanf(f, "%d", &pid) != 1)
        give_up("the real agent is gone");
    fclose(f);
    return pid;
}

void real_clients_start(struct sim *s)
{
    char from[INET_ADDRSTRLEN];
    struct in_addr first = node_address(s->nodes[0].number);
    uint32_t each = s->nodes[0].share.nlocal;
    struct strv argv = {0};
    inet_ntop(AF_INET, &first, from, sizeof from);
    strv_pushf(&argv, "store-load");
    strv_pushf(&argv, "ddp");
    strv_push(&argv, s->master);
    strv_pushf(&argv, "%u", s->master_port);
    strv_pushf(&argv, "connect");
    strv_pushf(&argv, "--clients=%u", s->n * each);
    strv_pushf(&argv, "--each=%u", each);
    strv_pushf(&argv, "--from=%s", from);
    strv_pushf(&argv, "--pid=%d", agent_of(s->agent));
    if ((s->load = fork()) == 0) {
        if (freopen(getenv("SCALE_JOINED"), "w", stdout))
            execv(getenv("SCALE_LOAD"), argv.v);
        _exit(127);
    }
    strv_finish(&argv);
}

static void on_ended(evutil_socket_t sig, short what, void *arg)
{
    struct sim *s = arg;
    int status;
    if (waitpid(s->load, &status, WNOHANG) != s->load)
        return;
    if (status != 0)
        give_up("the clients of the store have failed");
    phase_end(s);
}

void real_agent_start(struct sim *s, const char *netns)
{
    struct bootstrap b = s->boot;
    int ends[2], ns = open(netns, O_RDONLY | O_CLOEXEC);
    b.nodes = NULL;
    b.nnodes = 0;
    b.node = 0;
    b.name = s->boot.nodes[0].name;
    handshake_node_key(&s->boot.key, 0, &b.key);
    char *text = bootstrap_write(&b);
    if (ns < 0 || pipe(ends) < 0)
        give_up(strerror(errno));
    if ((s->agent = fork()) == 0) {
        dup2(ends[0], STDIN_FILENO);
        execl(getenv("SCALE_AGENT"), "ddprun-agent", (char *)NULL);
        _exit(127);
    }
    if (write(ends[1], text, strlen(text)) != (ssize_t)strlen(text) ||
        setns(ns, CLONE_NEWNET) < 0)
        give_up(strerror(errno));
    free(text);
    close(ns);
    s->ended = evsignal_new(loop_base(s->loop), SIGCHLD, on_ended, s);
    event_add(s->ended, NULL);
    s->phase = LAUNCH;
}
