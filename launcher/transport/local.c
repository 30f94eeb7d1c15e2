/* launcher/transport/local.c - see local.h */
#include "launcher/transport/local.h"

#include "common/duration.h"
#include "common/err.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

/* Ctrl-C goes to the launcher, which instructs the agent; it also reads stdin. */
static void settle(void)
{
    setsid();
    int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        dup2(fd, STDIN_FILENO);
        close(fd);
    }
}

int local_fork(struct local_agent *a, struct ddp_err *err)
{
    int pair[2];
    pid_t launcher = getpid();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return err_errno(err, "cannot make a socketpair");
    a->pid = fork();
    if (a->pid < 0) {
        err_spawn(err, "cannot fork");
        close(pair[0]);
        close(pair[1]);
        return -1;
    }
    a->fd = pair[a->pid == 0];
    close(pair[a->pid != 0]);
    if (a->pid != 0)
        return 1;
    a->pid = launcher;
    settle();
    return 0;
}

void local_await_launcher(const struct local_agent *a)
{
    for (int ms = 0; ms < 1000 && getppid() == a->pid; ms++)
        sleep_ms(1);
}
