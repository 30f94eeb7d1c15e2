/* bench/admission.c - what it costs to admit a connection to the store
 *
 * RANKS processes connect to a listener, all at once and then one after the other, each
 * CONNECTIONS times; for each connection the kernel is asked who holds it.
 *
 *     bench/admission [RANKS [CONNECTIONS]]
 */
#include "launcher/admission/admission.h"

#include "common/duration.h"
#include "common/sock.h"

#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Of this process: others of the machine do not count. */
static double cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* A rank: connects for each byte it is sent, and keeps its connections. */
static _Noreturn void be_rank(int go, int port)
{
    char byte;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    while (read(go, &byte, 1) == 1)
        sock_connect("127.0.0.1", port, now_ms() + 10000, false, NULL);
    _exit(0);
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 64, each = argc > 2 ? atoi(argv[2]) : 4, port;
    struct ddp_err err;
    int listener = sock_listen("127.0.0.1", 0, &port, &err),
        *go = calloc((size_t)ranks, sizeof *go);
    double *us = calloc((size_t)ranks, sizeof *us);
    struct admission *d = admission_create(getpid());
    if (listener < 0 || !go || !us)
        return 1;
    for (int i = 0; i < ranks; i++) {
        int ends[2];
        if (pipe(ends) < 0)
            return 1;
        if (fork() == 0) {
            dup2(ends[0], STDIN_FILENO);
            syscall(__NR_close_range, STDERR_FILENO + 1, ~0U, 0);
            be_rank(STDIN_FILENO, port);
        }
        close(ends[0]);
        go[i] = ends[1];
    }
    for (int round = 0; round < each; round++) {
        double sum = 0;
        for (int i = 0; i < ranks; i++) {
            if (write(go[i], "", 1) != 1)
                return 1;
        }
        for (int i = 0; i < ranks; i++) {
            struct sockaddr_in from, to;
            socklen_t n = sizeof from, m = sizeof to;
            poll(&(struct pollfd){.fd = listener, .events = POLLIN}, 1, -1);
            int fd = accept(listener, (struct sockaddr *)&from, &n);
            getsockname(fd, (struct sockaddr *)&to, &m);
            double began = cpu_us();
            if (admission_check(d, (struct sockaddr *)&from, (struct sockaddr *)&to,
                                &err) != 0)
                printf("refused: %s\n", err.text);
            us[i] = cpu_us() - began;
            sum += us[i];
        }
        qsort(us, (size_t)ranks, sizeof *us, by_value);
        printf("connection %d of %d ranks: %.1f us each, median %.1f, longest %.1f\n",
               round + 1, ranks, sum / ranks, us[ranks / 2], us[ranks - 1]);
    }
    return 0;
}
