/* worker/signals.c - see signals.h */
#include "worker/signals.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

/* pressed: the first SIGTERM or SIGINT, pressed_s: when. */
static volatile sig_atomic_t asked, pressed, pressed_s;

static void on_ask(int signal)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int now_s = (int)now.tv_sec;
    /* The scheduler's, and the launcher's behind it. */
    int repeat_s = signal == SIGTERM ? SIGNALS_REPEAT_S : 1;
    if (pressed == signal && now_s - pressed_s <= repeat_s)
        return;
    if (pressed)
        _exit(128 + signal);
    if (!asked)
        asked = signal;
    pressed_s = now_s;
    pressed = signal;
    alarm(SIGNALS_PATIENCE_S);
}

static void on_warning(int signal)
{
    if (!asked)
        asked = signal;
}

static void on_alarm(int signal)
{
    _exit(128 + (asked ? asked : signal));
}

static void handle(int signal, void (*fn)(int))
{
    /* SA_RESTART: system calls of the current step are not interrupted. */
    struct sigaction action = {.sa_handler = fn, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaddset(&action.sa_mask, SIGINT);
    sigaction(signal, &action, NULL);
}

void signals_install(void)
{
    handle(SIGTERM, on_ask);
    handle(SIGINT, on_ask);
    handle(SIGUSR1, on_warning);
    handle(SIGALRM, on_alarm);
    handle(SIGXFSZ, SIG_IGN);
    handle(SIGPIPE, SIG_IGN);
}

int signals_stop_requested(void)
{
    return asked;
}

void signals_ignore(void)
{
    handle(SIGTERM, SIG_IGN);
    handle(SIGINT, SIG_IGN);
    handle(SIGUSR1, SIG_IGN);
}
