/* launcher/agent/outside.c - see outside.h */
#include "launcher/agent/outside.h"

#include "common/err.h"
#include "common/mem.h"

#include <signal.h>
#include <stdlib.h>

static const int ends[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
static const int warnings[] = {SIGUSR1, SIGUSR2, SIGALRM, SIGVTALRM, SIGPROF, SIGXCPU};

struct outside {
    void (*told)(int sig, void *arg);
    void *arg;
    struct event *events[ARRAY_LEN(ends)]; /* owned */
};

static void on_signal(evutil_socket_t sig, short what, void *arg)
{
    struct outside *o = arg;
    o->told((int)sig, o->arg);
}

static void block_ends(int how)
{
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < ARRAY_LEN(ends); i++)
        sigaddset(&set, ends[i]);
    sigprocmask(how, &set, NULL);
}

void outside_deafen(void)
{
    block_ends(SIG_BLOCK);
    for (size_t i = 0; i < ARRAY_LEN(warnings); i++)
        signal(warnings[i], SIG_IGN);
}

struct outside *outside_create(struct loop *loop, void (*told)(int sig, void *arg),
                               void *arg, struct ddp_err *err)
{
    struct outside *o = xcalloc(1, sizeof *o);
    *o = (struct outside){.told = told, .arg = arg};
    outside_deafen();
    for (size_t i = 0; i < ARRAY_LEN(ends); i++) {
        o->events[i] =
            event_new(loop_base(loop), ends[i], EV_SIGNAL | EV_PERSIST, on_signal, o);
        if (!o->events[i] || event_add(o->events[i], NULL) < 0) {
            err_set(err, "cannot listen for signals");
            outside_destroy(o);
            return NULL;
        }
    }
    block_ends(SIG_UNBLOCK);
    return o;
}

void outside_destroy(struct outside *o)
{
    for (size_t i = 0; o && i < ARRAY_LEN(ends); i++) {
        if (o->events[i])
            event_free(o->events[i]);
    }
    free(o);
}
