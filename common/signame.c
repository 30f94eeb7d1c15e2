/* common/signame.c - see signame.h */
#include "common/signame.h"

#include "common/mem.h"

#include <signal.h>
#include <stddef.h>

#define NAMED(sig) [sig] = #sig

static const char *const names[] = {
    NAMED(SIGHUP),  NAMED(SIGINT),    NAMED(SIGQUIT), NAMED(SIGILL),  NAMED(SIGTRAP),
    NAMED(SIGABRT), NAMED(SIGBUS),    NAMED(SIGFPE),  NAMED(SIGKILL), NAMED(SIGUSR1),
    NAMED(SIGSEGV), NAMED(SIGUSR2),   NAMED(SIGPIPE), NAMED(SIGALRM), NAMED(SIGTERM),
    NAMED(SIGCHLD), NAMED(SIGCONT),   NAMED(SIGSTOP), NAMED(SIGTSTP), NAMED(SIGTTIN),
    NAMED(SIGTTOU), NAMED(SIGURG),    NAMED(SIGXCPU), NAMED(SIGXFSZ), NAMED(SIGVTALRM),
    NAMED(SIGPROF), NAMED(SIGWINCH),  NAMED(SIGIO),   NAMED(SIGPWR),  NAMED(SIGSYS),
    NAMED(SIGSTKFLT),
};

const char *signal_name(int sig)
{
    size_t i = (size_t)sig;
    return i < ARRAY_LEN(names) && names[i] ? names[i] : "SIGRT";
}
