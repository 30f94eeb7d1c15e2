/* spank/stored.c - see stored.h
 *
 * slurmstepd has threads: between fork and exec the child calls nothing that takes a
 * lock. The child is killed through a pidfd, not by pid: slurmstepd reaps all its
 * children.
 */
#include "spank/stored.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/number.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { OPEN_MS = 10000 };

static int stored_pidfd = -1;
static int stored_out = -1; /* kept open: a later write of ddpstored must not fail */

/* slurmstepd has switched to the user temporarily; make it permanent here. */
static int be_the_user(void)
{
    uid_t uid = geteuid();
    gid_t gid = getegid();
    return setresgid(gid, gid, gid) < 0 || setresuid(uid, uid, uid) < 0 ? -1 : 0;
}

static void run_stored(char *program, char *port, char *hosts, int out, pid_t parent)
{
    /* --grace: existing clients may finish; SIGKILL comes at the end of the step */
    char *argv[] = {program,        (char[]){"--port"},
                    port,           (char[]){"--grace"},
                    (char[]){"1h"}, hosts ? (char[]){"--allow"} : (char[]){"--open"},
                    hosts,          NULL};
    char *env[] = {NULL};
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setsid();
    int null = open("/dev/null", O_RDWR);
    if (be_the_user() == 0 && prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 &&
        getppid() == parent && dup2(null, 0) == 0 && dup2(out, 1) == 1 &&
        dup2(out, 2) == 2 && syscall(__NR_close_range, 3, ~0u, 0) == 0)
        execve(program, argv, env);
    static const char message[] = "it cannot be run\n";
    if (write(2, message, sizeof message - 1) < 0)
        _exit(126);
    _exit(127);
}

/* Read its first line: the port, or an error message. */
static int read_line(int fd, char *line, size_t size)
{
    size_t n = 0;
    int64_t until = now_ms() + OPEN_MS;
    while (n < size - 1 && !memchr(line, '\n', n)) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t left = until - now_ms();
        int ready = left > 0 ? poll(&p, 1, (int)left) : 0;
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return -1;
        ssize_t got = read(fd, line + n, size - 1 - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    line[n] = '\0';
    line[strcspn(line, "\n")] = '\0';
    return 0;
}

int stored_start(char *program, int port, char *hosts, struct ddp_err *err)
{
    int out[2];
    char text[16], line[300] = "";
    if (access(program, X_OK) < 0)
        return err_errno(err, "cannot run '%s'", program);
    if (pipe2(out, O_CLOEXEC) < 0)
        return err_errno(err, "cannot make a pipe");
    /* its output is read when a task ends: it must not block before */
    fcntl(out[1], F_SETFL, O_NONBLOCK);
    snprintf(text, sizeof text, "%d", port);
    pid_t self = getpid(), pid = fork();
    if (pid == 0)
        run_stored(program, text, hosts, out[1], self);
    close(out[1]);
    if (pid < 0) {
        close(out[0]);
        return err_errno(err, "cannot fork");
    }
    stored_pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    stored_out = out[0];
    if (read_line(out[0], line, sizeof line) == 0 && number_whole(line, 1, 65535, &port))
        return port;
    stored_stop();
    return err_set(err, "%s", line[0] ? line : "ddpstored gave no message");
}

bool stored_said(char *text, size_t size)
{
    struct pollfd p = {.fd = stored_out, .events = POLLIN};
    ssize_t n = stored_out >= 0 && poll(&p, 1, 0) > 0 ? read(p.fd, text, size - 1) : 0;
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
}

void stored_stop(void)
{
    if (stored_pidfd >= 0) {
        syscall(SYS_pidfd_send_signal, stored_pidfd, SIGKILL, NULL, 0);
        close(stored_pidfd);
    }
    if (stored_out >= 0)
        close(stored_out);
    stored_pidfd = stored_out = -1;
}
