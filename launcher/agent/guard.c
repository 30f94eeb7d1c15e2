/* launcher/agent/guard.c - see guard.h */
#include "launcher/agent/guard.h"

#include "common/err.h"
#include "common/scoped.h"
#include "common/sockdiag.h"
#include "launcher/agent/ext_signals.h"
#include "launcher/agent/kill_tree.h"
#include "launcher/transport/program.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Within LOOKS times LOOK_S an agent that runs ends its ranks. */
enum { KILL_TREE_MS = 10000, LOOK_S = 5, LOOKS = 2 };

/* Of the agent's link. The guard has no descriptor of it, which would keep the connection
 * open when the agent has been killed. */
static struct watched {
    atomic_bool known;
    struct sockaddr_storage here, there;
} * watched; /* memory of both processes; NULL: no guard */

static int failed(const struct ddp_err *err)
{
    fprintf(stderr, "ddprun-agent: %s\n", err->text);
    return EXIT_CANNOT_START;
}

/* `pkill -9 ddprun` must not match both. */
static void call_itself_guard(char *argv0)
{
    prctl(PR_SET_NAME, "ddp-guard");
    size_t n = argv0 ? strlen(argv0) : 0;
    if (n >= strlen("agent"))
        memcpy(argv0 + n - strlen("agent"), "guard", strlen("guard"));
}

/* TCP_CLOSE: there is no such connection any more; 0: that cannot be told. */
static unsigned link_state(int netlink)
{
    struct sock_owner is;
    if (sockdiag_find(netlink, (struct sockaddr *)&watched->here,
                      (struct sockaddr *)&watched->there, &is, NULL) < 0)
        return errno == ENOENT ? TCP_CLOSE : 0;
    return is.state;
}

void guard_watch(int fd)
{
    if (!watched)
        return;
    socklen_t here = sizeof watched->here, there = sizeof watched->there;
    SCOPED(close_fd) int netlink = sockdiag_open();
    bool known = getsockname(fd, (struct sockaddr *)&watched->here, &here) == 0 &&
                 getpeername(fd, (struct sockaddr *)&watched->there, &there) == 0 &&
                 link_state(netlink) == TCP_ESTABLISHED; /* so the kernel tells */
    atomic_store(&watched->known, known);
}

/* Is it stopped, or does it wait in the kernel? */
static bool is_halted(pid_t pid)
{
    struct ancestry_proc p;
    return ancestry_read(pid, &p) && strchr("TtD", p.state);
}

/* The kernel ends a connection also while its process does not run. The agent is one of
 * the helpers that are passed. */
static void look_at_link(pid_t agent, int netlink, int *closed)
{
    unsigned state = atomic_load(&watched->known) ? link_state(netlink) : 0;
    *closed = state == 0 || state == TCP_ESTABLISHED ? 0 : *closed + 1;
    if (*closed >= LOOKS && is_halted(agent)) {
        kill_tree_signal(SIGKILL, kill_tree_pass_helpers, NULL);
        kill(agent, SIGCONT); /* it cleans up, and exits */
    }
}

/* Wait until the agent has exited; forward termination signals to it. */
static int guard_agent(pid_t agent)
{
    const struct timespec look = {.tv_sec = LOOK_S};
    int netlink = sockdiag_open(), closed = 0, status = 0;
    sigset_t awaited;
    ext_signals_ends(&awaited);
    sigaddset(&awaited, SIGCHLD);
    for (;;) {
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid == agent || (pid < 0 && errno == ECHILD))
            break;
        int sig = pid == 0 ? sigtimedwait(&awaited, NULL, &look) : SIGCHLD;
        if (sig > 0 && sig != SIGCHLD)
            kill(agent, sig);
        else if (sig < 0 && errno == EAGAIN)
            look_at_link(agent, netlink, &closed);
    }
    kill_tree_reap(KILL_TREE_MS);
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_CANNOT_START;
}

int guard_part(int (*be_agent)(int lifeline, void *arg), void *arg, char *argv0)
{
    struct ddp_err err;
    int guard[2];
    sigset_t all, ours;
    watched = mmap(NULL, sizeof *watched, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (watched == MAP_FAILED || pipe2(guard, O_CLOEXEC) < 0 ||
        prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) {
        err_errno(&err, "cannot watch over an agent");
        return failed(&err);
    }
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &ours);
    pid_t pid = fork();
    if (pid < 0) {
        err_spawn(&err, "cannot fork");
        return failed(&err);
    }
    close(guard[pid == 0]);
    if (pid > 0) {
        call_itself_guard(argv0);
        return guard_agent(pid);
    }
    sigprocmask(SIG_SETMASK, &ours, NULL);
    /* Grid Engine kills a task by its process group, which must not hold both processes;
     * and Ctrl-C must reach the guard only. */
    setsid();
    return be_agent(guard[0], arg);
}
