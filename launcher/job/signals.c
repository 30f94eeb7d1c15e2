/* launcher/job/signals.c - see signals.h */
#include "launcher/job/signals.h"

#include "common/err.h"
#include "common/mem.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum meaning { MEANS_END, MEANS_PASS, MEANS_STOP, MEANS_CONT };

static const struct {
    int sig;
    enum meaning meaning;
} table[] = {
    {SIGINT, MEANS_END},     {SIGTERM, MEANS_END},  {SIGHUP, MEANS_END},
    {SIGQUIT, MEANS_END},    {SIGUSR1, MEANS_PASS}, {SIGUSR2, MEANS_PASS},
    {SIGWINCH, MEANS_PASS},  {SIGURG, MEANS_PASS},  {SIGALRM, MEANS_PASS},
    {SIGVTALRM, MEANS_PASS}, {SIGXCPU, MEANS_PASS}, {SIGTSTP, MEANS_STOP},
    {SIGCONT, MEANS_CONT},
};

struct signals {
    struct signals_events events;
    void *arg;
    struct event *ev[ARRAY_LEN(table)]; /* owned; NULL: the signal is ignored */
    int fd;                             /* owned: signalfd of ignored INT and QUIT; -1 */
    struct event *sent;                 /* owned */
};

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    struct signals *s = arg;
    size_t i = 0;
    while (table[i].sig != sig)
        i++;
    switch (table[i].meaning) {
    case MEANS_END:
        s->events.end((int)sig, s->arg);
        break;
    case MEANS_PASS:
        s->events.pass((int)sig, s->arg);
        break;
    case MEANS_STOP:
        s->events.stop(s->arg);
        kill(getpid(), SIGSTOP);
        break;
    case MEANS_CONT:
        s->events.continued(s->arg);
        break;
    }
}

/* Shells without job control start background processes with INT and QUIT ignored, so
 * that Ctrl-C does not end them; `kill -INT` still should. The kernel queues a blocked
 * signal even while it is ignored, and signalfd reports its sender: SI_KERNEL is the
 * terminal. Signal dispositions are reset in children (transport/child.c). */
static void on_sent(evutil_socket_t fd, short what, void *arg)
{
    struct signals *s = arg;
    struct signalfd_siginfo info;
    if (read(fd, &info, sizeof info) == (ssize_t)sizeof info &&
        info.ssi_code != SI_KERNEL)
        s->events.end((int)info.ssi_signo, s->arg);
}

static int listen_to_senders(struct signals *s, struct loop *loop,
                             const sigset_t *ignored)
{
    if (sigisemptyset(ignored))
        return 0;
    sigprocmask(SIG_BLOCK, ignored, NULL);
    s->fd = signalfd(-1, ignored, SFD_NONBLOCK | SFD_CLOEXEC);
    if (s->fd < 0)
        return -1;
    s->sent = loop_watch(loop, s->fd, EV_READ | EV_PERSIST, on_sent, s);
    return 0;
}

/* A signal that is ignored at startup, as by nohup, stays ignored. */
static bool ignored(int sig)
{
    struct sigaction sa;
    return sigaction(sig, NULL, &sa) == 0 && sa.sa_handler == SIG_IGN;
}

struct signals *signals_create(struct loop *loop, const struct signals_events *events,
                               void *arg, struct ddp_err *err)
{
    struct signals *s = xcalloc(1, sizeof *s);
    sigset_t ignored_set;
    sigemptyset(&ignored_set);
    s->events = *events;
    s->arg = arg;
    s->fd = -1;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* write() reports EFBIG instead */
    /* terminal I/O from the background must not stop ddprun: a stopped launcher does not
     * detect failures */
    signal(SIGTTIN, SIG_IGN);
    signal(SIGTTOU, SIG_IGN);
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (ignored(table[i].sig)) {
            if (table[i].sig == SIGINT || table[i].sig == SIGQUIT)
                sigaddset(&ignored_set, table[i].sig);
            continue;
        }
        s->ev[i] = loop_watch(loop, table[i].sig, EV_SIGNAL | EV_PERSIST, on_signal, s);
    }
    if (listen_to_senders(s, loop, &ignored_set) < 0) {
        err_errno(err, "cannot listen for signals that are ignored");
        signals_destroy(s);
        return NULL;
    }
    return s;
}

void signals_block_ends(void)
{
    sigset_t ends;
    sigemptyset(&ends);
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i].meaning == MEANS_END)
            sigaddset(&ends, table[i].sig);
    sigprocmask(SIG_BLOCK, &ends, NULL);
}

void signals_destroy(struct signals *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        loop_free(s->ev[i]);
    loop_close_fd(&s->sent, &s->fd);
    free(s);
}
