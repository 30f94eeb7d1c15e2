/* launcher/job/terminal.c - see terminal.h */
#include "launcher/job/terminal.h"

#include "common/mem.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* Signals that end ddprun without its event loop: crashes and the rest of those
 * that end a process by default. */
static const int fatal[] = {SIGSEGV, SIGBUS,  SIGFPE, SIGILL,    SIGABRT, SIGTRAP,
                            SIGSYS,  SIGPROF, SIGIO,  SIGSTKFLT, SIGPWR};

struct terminal {
    enum terminal_mode mode;
    bool shared;           /* another process writes lines to it, too */
    struct termios before; /* unless it is `mode` */
    struct sigaction actions[ARRAY_LEN(fatal)];
};

static const struct terminal *active; /* for on_fatal(); NULL: the mode is ours */

/* From the background we would set the modes of the shell, as SIGTTOU is ignored. */
static bool in_foreground(void)
{
    return tcgetpgrp(STDIN_FILENO) == getpgrp();
}

bool terminal_wanted(const struct opts *opts, int nranks)
{
    if (opts->pty != PTY_AUTO || nranks != 1)
        return opts->pty == PTY_ON && nranks == 1;
    return opts->input != INPUT_NONE && opts->tag_output != TAG_ON &&
           !opts->timestamp_output && !opts->output_from && isatty(STDIN_FILENO) &&
           isatty(STDOUT_FILENO) && isatty(STDERR_FILENO) && in_foreground();
}

void terminal_size(unsigned *rows, unsigned *columns)
{
    struct winsize w = {0};
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (ioctl(fd, TIOCGWINSZ, &w) == 0 && w.ws_row > 0)
            break;
    }
    *rows = w.ws_row > 0 ? w.ws_row : 24;
    *columns = w.ws_col > 0 ? w.ws_col : 80;
}

/* The action is the default one again (SA_RESETHAND), so the signal ends us. */
static void on_fatal(int sig)
{
    if (active)
        tcsetattr(STDIN_FILENO, TCSANOW, &active->before);
    raise(sig);
}

static bool take(struct terminal *t)
{
    struct sigaction restore = {.sa_handler = on_fatal,
                                .sa_flags = SA_RESETHAND | SA_NODEFER};
    if (tcgetattr(STDIN_FILENO, &t->before) < 0)
        return false;
    active = t;
    for (size_t i = 0; i < ARRAY_LEN(fatal); i++)
        sigaction(fatal[i], &restore, &t->actions[i]);
    return true;
}

static void set_back(struct terminal *t)
{
    tcsetattr(STDIN_FILENO, TCSANOW, &t->before);
    for (size_t i = 0; i < ARRAY_LEN(fatal); i++)
        sigaction(fatal[i], &t->actions[i], NULL);
    active = NULL;
}

static void apply(const struct terminal *t)
{
    struct termios m = t->before;
    if (t->mode == TERMINAL_RAW)
        cfmakeraw(&m);
    m.c_oflag = t->before.c_oflag;
    if (!t->shared)
        m.c_oflag &= ~(tcflag_t)OPOST;
    tcsetattr(STDIN_FILENO, TCSANOW, &m);
}

void terminal_set(struct terminal *t, enum terminal_mode mode)
{
    if (mode == t->mode || !in_foreground() || (t->mode == TERMINAL_OURS && !take(t)))
        return;
    t->mode = mode;
    if (mode == TERMINAL_OURS)
        set_back(t);
    else
        apply(t);
}

void terminal_share(struct terminal *t)
{
    t->shared = true;
    if (t->mode != TERMINAL_OURS && in_foreground())
        apply(t);
}

struct terminal *terminal_create(void)
{
    return xcalloc(1, sizeof(struct terminal));
}

void terminal_destroy(struct terminal *t)
{
    if (t)
        terminal_set(t, TERMINAL_OURS);
    active = NULL;
    free(t);
}
