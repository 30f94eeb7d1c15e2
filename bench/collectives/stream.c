/* bench/collectives/stream.c - what TCP alone takes for the bytes of an all-reduce
 *
 * Two ranks that all-reduce S bytes send and receive S bytes each, whatever the
 * algorithm. Here two processes do just that, over one connection each way: no addition,
 * no headers, buffers used again and again. Through loopback, or between two network
 * namespaces: the arguments are an address of the first and both namespaces' files (or
 * 127.0.0.1 - -), then the contest's.
 */
#include "bench/collectives/contest.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIECE = 256 << 10 };

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

/* Sockets made from now on are in this namespace. */
static void enter(const char *netns)
{
    if (strcmp(netns, "-") == 0)
        return;
    int fd = open(netns, O_RDONLY | O_CLOEXEC);
    check(fd >= 0 && setns(fd, CLONE_NEWNET) == 0, netns);
    close(fd);
}

static int dial(struct sockaddr_in *sa)
{
    int a = socket(AF_INET, SOCK_STREAM, 0);
    check(connect(a, (struct sockaddr *)sa, sizeof *sa) == 0, "connect");
    setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
    if (sa->sin_addr.s_addr == htonl(INADDR_LOOPBACK))
        setsockopt(a, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
    return a;
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: stream ADDRESS NETNS NETNS all_reduce TIMES BYTES...\n");
        return 2;
    }
    struct sockaddr_in sa = {.sin_family = AF_INET,
                             .sin_addr.s_addr = inet_addr(argv[1])};
    socklen_t len = sizeof sa;
    enter(argv[2]);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listener, (struct sockaddr *)&sa, len) == 0 && listen(listener, 2) == 0 &&
              getsockname(listener, (struct sockaddr *)&sa, &len) == 0,
          "listen");
    enter(argv[3]);
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
    c.data = aligned_alloc(64, CONTEST_ROOM);
    memset(c.data, 0, CONTEST_ROOM);
    contest_run(&c, argc - 4, argv + 4);
    if (child == 0)
        _exit(0);
    int status;
    check(waitpid(child, &status, 0) == child && status == 0, "the other rank");
    return 0;
}
