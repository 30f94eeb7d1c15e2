/* bench/store/echo.c - store-echo [ADDRESS]: gives back what it gets
 *
 * It does so with as few calls as possible.
 * What the kernel alone costs a request: one epoll_wait for many, a recv and a send each.
 * Prints the port it listens on.
 */
#include "common/mem.h"
#include "common/sock.h"

#include <errno.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

static void welcome(int epoll, int listener)
{
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};
        sock_set_nodelay(fd);
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &ev);
    }
}

static void echo(int fd)
{
    static char bytes[64 << 10];
    ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || send(fd, bytes, (size_t)n, MSG_NOSIGNAL) != n)
        close(fd);
}

int main(int argc, char **argv)
{
    struct ddp_err err;
    struct epoll_event events[256];
    int port, listener = sock_listen(argc > 1 ? argv[1] : "127.0.0.1", 0, &port, &err);
    if (listener < 0) {
        fprintf(stderr, "store-echo: %s\n", err.text);
        return 1;
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    printf("%d\n", port);
    fflush(stdout);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &ev);
    for (;;) {
        int n = epoll_wait(epoll, events, (int)ARRAY_LEN(events), -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == listener)
                welcome(epoll, listener);
            else
                echo(events[i].data.fd);
        }
    }
}
