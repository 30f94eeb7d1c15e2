/* launcher/plugins/mpi/pmix_listener.c - see pmix_listener.h
 *
 * Connections are accepted in the loop. Their descriptors' numbers go through a pipe,
 * which takes the place of libpmix's listening socket: it is readable when there is one
 * for libpmix to accept.
 */
#include "launcher/plugins/mpi/pmix_listener.h"

#include "common/duration.h"
#include "common/listener.h"
#include "common/scoped.h"
#include "common/sock.h"
#include "launcher/admission/admission.h"
#include "launcher/plugins/mpi/pmix_sessions.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RETRY_MS = 1 }; /* between two looks whether a queued program may enter */

static int listen_fd = -1;        /* owned: the agent's socket; then the listener's */
static int first = -1;            /* owned: the agent's accepted connection */
static int pipe_fds[2];           /* owned: reading and writing end */
static int library_fd = -1;       /* libpmix's descriptor for its listening socket */
static struct listener *listener; /* owned; NULL: not open yet */
static struct event *retry;       /* owned */
static struct admission *admission;

/* ---- overrides of C library functions, for libpmix ---- */

/* glibc declares the second parameter as a union of pointers that C callers never see */
#define EXPORT __attribute__((visibility("default")))
EXPORT int bind(int fd, __CONST_SOCKADDR_ARG addr, socklen_t len);
EXPORT int listen(int fd, int backlog);
EXPORT int accept(int fd, __SOCKADDR_ARG addr, socklen_t *restrict len);

/* libpmix reads the port from its socket between bind() and listen(). */
int bind(int fd, __CONST_SOCKADDR_ARG addr, socklen_t len)
{
    if (listen_fd < 0 || library_fd >= 0 || addr.__sockaddr__->sa_family != AF_INET)
        return (int)syscall(SYS_bind, fd, addr.__sockaddr__, len);
    library_fd = dup3(listen_fd, fd, O_CLOEXEC);
    return library_fd < 0 ? -1 : 0;
}

int listen(int fd, int backlog)
{
    if (fd != library_fd)
        return (int)syscall(SYS_listen, fd, backlog);
    return dup3(pipe_fds[0], fd, O_CLOEXEC) < 0 ? -1 : 0;
}

int accept(int fd, __SOCKADDR_ARG addr, socklen_t *restrict len)
{
    int s;
    if (fd != library_fd)
        return (int)syscall(SYS_accept4, fd, addr.__sockaddr__, len, SOCK_CLOEXEC);
    if (read(fd, &s, sizeof s) != sizeof s)
        return -1;
    getpeername(s, addr.__sockaddr__, len);
    return s;
}

/* ---- in the loop ---- */

static void hand_over(int fd)
{
    sock_set_nonblock(fd, false); /* as libpmix expects */
    if (write(pipe_fds[1], &fd, sizeof fd) != sizeof fd)
        close(fd);
}

static void on_retry(evutil_socket_t nothing, short what, void *arg)
{
    int fd;
    while ((fd = sessions_take()) >= 0)
        hand_over(fd);
    if (sessions_queued() > 0)
        loop_arm(retry, RETRY_MS);
}

static void on_connect(int fd, const struct sockaddr *from, void *arg)
{
    struct ddp_err why;
    pid_t who;
    if (admission_accepted(admission, fd, from, &who, &why) != 0) {
        listener_refused(listener, from, why.text);
        close(fd);
    } else if (sessions_admit(fd, who)) {
        hand_over(fd);
    } else {
        loop_arm(retry, RETRY_MS);
    }
}

int pmix_listener_set(int fd, int first_fd, pid_t ancestor)
{
    listen_fd = fd;
    first = first_fd;
    admission = admission_create(ancestor);
    return pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK);
}

void pmix_listener_open(struct loop *loop)
{
    struct sockaddr_storage from = {0};
    socklen_t size = sizeof from;
    retry = loop_timer(loop, on_retry, NULL);
    listener = listener_create(loop, listen_fd, "PMIx", on_connect, NULL);
    if (first >= 0 && getpeername(first, (struct sockaddr *)&from, &size) == 0)
        on_connect(first, (struct sockaddr *)&from, NULL);
    else
        close_fd(&first);
}

bool pmix_listener_empties(int64_t deadline_ms)
{
    for (int fd = 0; fd < FD_SETSIZE;) {
        bool waits = sessions_active(fd);
        if (waits && now_ms() >= deadline_ms)
            return false;
        if (waits)
            sleep_ms(1);
        else
            fd++;
    }
    return true;
}
