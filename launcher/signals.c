/* launcher/signals.c - see signals.h */
#include "launcher/signals.h"

#include "common/err.h"
#include "common/mem.h"

#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

enum meaning { MEANS_END, MEANS_PASS, MEANS_STOP, MEANS_CONT };

static const struct {
    int sig;
    enum meaning meaning;
} table[] = {
    {SIGINT, MEANS_END},     {SIGTERM, MEANS_END},  {SIGHUP, MEANS_END},
    {SIGQUIT, MEANS_END},    {SIGUSR1, MEANS_PASS}, {SIGUSR2, MEANS_PASS},
    {SIGWINCH, MEANS_PASS},  {SIGURG, MEANS_PASS},  {SIGALRM, MEANS_PASS},
    {SIGVTALRM, MEANS_PASS}, {SIGTSTP, MEANS_STOP}, {SIGCONT, MEANS_CONT},
};

struct signals {
    struct signals_events events;
    void *arg;
    struct event *ev[ARRAY_LEN(table)]; /* owned; NULL: the signal is ignored */
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

/* nohup and shells without job control start us with signals ignored: so they stay. */
static bool ignored(int sig)
{
    struct sigaction sa;
    return sigaction(sig, NULL, &sa) == 0 && sa.sa_handler == SIG_IGN;
}

struct signals *signals_create(struct loop *loop, const struct signals_events *events,
                               void *arg, struct ddp_err *err)
{
    struct signals *s = xcalloc(1, sizeof *s);
    s->events = *events;
    s->arg = arg;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTTIN,
           SIG_IGN); /* in the background, reading or writing the terminal must */
    signal(SIGTTOU, SIG_IGN); /* not stop us: a stopped launcher hears of no failure */
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (ignored(table[i].sig))
            continue;
        s->ev[i] = event_new(loop_base(loop), table[i].sig, EV_SIGNAL | EV_PERSIST,
                             on_signal, s);
        if (!s->ev[i] || event_add(s->ev[i], NULL) < 0) {
            err_set(err, "cannot listen for signals");
            signals_destroy(s);
            return NULL;
        }
    }
    return s;
}

void signals_destroy(struct signals *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (s->ev[i])
            event_free(s->ev[i]);
    }
    free(s);
}
