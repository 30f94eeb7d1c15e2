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
    struct event *ev[ARRAY_LEN(table)]; /* owned; NULL: ignored, or by `fd` */
    int fd;                             /* owned: signalfd of blocked signals; -1 */
    struct event *sent;                 /* owned */
};

static bool comes_by_fd(size_t i)
{
    return table[i].meaning == MEANS_STOP || table[i].meaning == MEANS_CONT;
}

/* Unless a SIGCONT has come since: it will not come again. */
static void stop(void)
{
    sigset_t pending;
    if (sigpending(&pending) == 0 && !sigismember(&pending, SIGCONT))
        kill(getpid(), SIGSTOP);
}

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
        stop();
        break;
    case MEANS_CONT:
        s->events.continued(s->arg);
        break;
    }
}

/* Shells without job control start background processes with INT and QUIT ignored, so
 * that Ctrl-C does not end them; `kill -INT` still should. The kernel queues a blocked
 * signal even while it is ignored, and signalfd reports its sender: SI_KERNEL is the
 * terminal. TSTP and CONT are blocked as well: of these the kernel keeps the later one
 * only. Signal dispositions are reset in children (transport/child.c). */
static void on_sent(evutil_socket_t fd, short what, void *arg)
{
    struct signalfd_siginfo info;
    if (read(fd, &info, sizeof info) != (ssize_t)sizeof info)
        return;
    int sig = (int)info.ssi_signo;
    if (info.ssi_code != SI_KERNEL || (sig != SIGINT && sig != SIGQUIT))
        on_signal(sig, what, arg);
}

static int listen_to_senders(struct signals *s, struct loop *loop,
                             const sigset_t *blocked)
{
    sigprocmask(SIG_BLOCK, blocked, NULL);
    s->fd = signalfd(-1, blocked, SFD_NONBLOCK | SFD_CLOEXEC);
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

static void mask(int how, enum meaning meaning)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        if (table[i].meaning == meaning)
            sigaddset(&set, table[i].sig);
    sigprocmask(how, &set, NULL);
}

void signals_hold(void)
{
    mask(SIG_SETMASK, MEANS_PASS);
}

void signals_block_ends(void)
{
    mask(SIG_BLOCK, MEANS_END);
}

struct signals *signals_create(struct loop *loop, const struct signals_events *events,
                               void *arg, struct ddp_err *err)
{
    struct signals *s = xcalloc(1, sizeof *s);
    sigset_t blocked;
    sigemptyset(&blocked);
    s->events = *events;
    s->arg = arg;
    s->fd = -1;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* write() reports EFBIG instead */
    /* else terminal I/O from the background would stop ddprun, which detects failures */
    signal(SIGTTIN, SIG_IGN);
    signal(SIGTTOU, SIG_IGN);
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        int sig = table[i].sig;
        bool is_ignored = ignored(sig);
        if (is_ignored ? sig == SIGINT || sig == SIGQUIT : comes_by_fd(i))
            sigaddset(&blocked, sig);
        else if (!is_ignored)
            s->ev[i] = loop_watch(loop, sig, EV_SIGNAL | EV_PERSIST, on_signal, s);
    }
    if (listen_to_senders(s, loop, &blocked) < 0) {
        err_errno(err, "cannot listen for signals that are blocked");
        signals_destroy(s);
        return NULL;
    }
    mask(SIG_UNBLOCK, MEANS_PASS);
    return s;
}

void signals_destroy(struct signals *s)
{
    if (!s)
        return;
    mask(SIG_BLOCK, MEANS_PASS);
    for (size_t i = 0; i < ARRAY_LEN(table); i++)
        loop_free(s->ev[i]);
    loop_close_fd(&s->sent, &s->fd);
    free(s);
}
