/* launcher/agent/guard.c - see guard.h */
#include "launcher/agent/guard.h"

#include "common/err.h"
#include "launcher/agent/kill_tree.h"
#include "launcher/transport/program.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { KILL_TREE_MS = 10000 };

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

/* Wait until the agent has exited; forward termination signals to it. */
static int guard_agent(pid_t agent)
{
    static const int ends[] = {SIGHUP, SIGINT, SIGTERM, SIGQUIT};
    sigset_t awaited;
    sigemptyset(&awaited);
    sigaddset(&awaited, SIGCHLD);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
        sigaddset(&awaited, ends[i]);
    int status = 0, sig;
    for (;;) {
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid == agent || (pid < 0 && errno == ECHILD))
            break;
        if (pid == 0 && sigwait(&awaited, &sig) == 0 && sig != SIGCHLD)
            kill(agent, sig);
    }
    kill_tree_reap(KILL_TREE_MS);
    return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_CANNOT_START;
}

int guard_part(int (*be_agent)(int lifeline, void *arg), void *arg, char *argv0)
{
    struct ddp_err err;
    int guard[2];
    sigset_t all, ours;
    if (pipe2(guard, O_CLOEXEC) < 0 || prctl(PR_SET_CHILD_SUBREAPER, 1) < 0) {
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
