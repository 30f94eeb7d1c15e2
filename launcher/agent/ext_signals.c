/* launcher/agent/ext_signals.c - see ext_signals.h */
#include "launcher/agent/ext_signals.h"

#include "common/mem.h"

#include <stdbool.h>
#include <stdlib.h>

static const int ends[] = {SIGTERM, SIGINT, SIGHUP};
/* Ctrl-\ reaches a local agent, too: the launcher handles it */
static const int warnings[] = {SIGQUIT,   SIGUSR1, SIGUSR2, SIGALRM,
                               SIGVTALRM, SIGPROF, SIGXCPU};

struct ext_signals {
    void (*on_end)(int sig, void *arg);
    void *arg;
    struct event *events[ARRAY_LEN(ends)]; /* owned */
};

/* By nohup: the launcher ignores it, too. */
static bool ignored(int sig)
{
    struct sigaction sa;
    return sig == SIGHUP && sigaction(sig, NULL, &sa) == 0 && sa.sa_handler == SIG_IGN;
}

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    struct ext_signals *o = arg;
    o->on_end((int)sig, o->arg);
}

void ext_signals_ends(sigset_t *set)
{
    sigemptyset(set);
    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        sigaddset(set, ends[i]);
}

void ext_signals_hold(void)
{
    sigset_t set;
    ext_signals_ends(&set);
    sigprocmask(SIG_BLOCK, &set, NULL);
    for (size_t i = 0; i < ARRAY_LEN(warnings); i++)
        signal(warnings[i], SIG_IGN);
}

struct ext_signals *ext_signals_create(struct loop *loop,
                                       void (*on_end)(int sig, void *arg), void *arg)
{
    struct ext_signals *o = xcalloc(1, sizeof *o);
    *o = (struct ext_signals){.on_end = on_end, .arg = arg};
    ext_signals_hold();
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        if (!ignored(ends[i]))
            o->events[i] =
                loop_watch(loop, ends[i], EV_SIGNAL | EV_PERSIST, on_signal, o);
    }
    sigset_t held; /* by us, and by a launcher before it has forked us */
    ext_signals_ends(&held);
    for (size_t i = 0; i < ARRAY_LEN(warnings); i++)
        sigaddset(&held, warnings[i]);
    sigprocmask(SIG_UNBLOCK, &held, NULL);
    return o;
}

void ext_signals_destroy(struct ext_signals *o)
{
    for (size_t i = 0; o && i < ARRAY_LEN(ends); i++)
        loop_free(o->events[i]);
    free(o);
}
