/* bench/collectives/stream.c - what TCP alone takes for the bytes of an all-reduce
 *
 * Two ranks that all-reduce S bytes send and receive S bytes each, whatever the
 * algorithm. Here two processes do just that, over one connection each way through
 * loopback: no addition, no headers, buffers used again and again. Arguments: sizes.
 */
#include "bench/collectives/contest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROOM = 32 << 20, PIECE = 256 << 10 };

static int out, in;

static void check(int ok, const char *what)
{
    if (!ok) {
        perror(what);
        exit(1);
    }
}

static void exchange(float *data, size_t count)
{
    static char came[PIECE];
    size_t bytes = count * sizeof *data, sent = 0, got = 0;
    while (sent < bytes || got < bytes) {
        ssize_t o = 0, i = 0;
        if (sent < bytes)
            o = send(out, (char *)data + sent, bytes - sent, MSG_DONTWAIT);
        if (got < bytes)
            i = recv(in, came, bytes - got < PIECE ? bytes - got : PIECE, MSG_DONTWAIT);
        check(o >= 0 || errno == EAGAIN, "send");
        check(i >= 0 || errno == EAGAIN, "recv");
        sent += o > 0 ? (size_t)o : 0;
        got += i > 0 ? (size_t)i : 0;
        if (o <= 0 && i <= 0) {
            struct pollfd p[2] = {{.fd = got < bytes ? in : -1, .events = POLLIN},
                                  {.fd = sent < bytes ? out : -1, .events = POLLOUT}};
            poll(p, 2, 1000);
        }
    }
}

static void barrier(void)
{
    float nothing = 0;
    exchange(&nothing, 1);
}

static int dial(struct sockaddr_in *sa)
{
    int a = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(a, (struct sockaddr *)sa, sizeof *sa) == 0, "connect");
    setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    setsockopt(a, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    return a;
}

int main(int argc, char **argv)
{
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof sa;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&sa, len) == 0 && listen(listener, 2) == 0 &&
              getsockname(listener, (struct sockaddr *)&sa, &len) == 0,
          "listen");
    int first = dial(&sa), first_in = accept(listener, NULL, NULL);
    int second = dial(&sa), second_in = accept(listener, NULL, NULL);
    pid_t child = fork();
    if (child == 0)
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct contestant c = {.rank = child == 0, .size = 2, .unchecked = 1};
    out = child ? first : second;
    in = child ? second_in : first_in;
    c.all_reduce = exchange;
    c.barrier = barrier;
    contest_pin(c.rank);
    c.data = aligned_alloc(64, ROOM);
    memset(c.data, 0, ROOM);
    contest_run(&c, argc - 1, argv + 1);
    if (child == 0)
        _exit(0);
    int status;
    check(waitpid(child, &status, 0) == child && status == 0, "the other rank");
    return 0;
}
