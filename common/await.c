/* common/await.c - see await.h */
#include "common/await.h"

#include "common/duration.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>

/* PAUSE_MS grows from 1: most have ended already. KILLED_MS: for the kernel to end it;
 * one that hangs in there is init's when we are gone. */
enum { PAUSE_MS = 50, KILLED_MS = 2000 };

static int look(pid_t pid, int64_t deadline_ms, int *status)
{
    for (int pause = 1;; pause = pause < PAUSE_MS ? pause * 2 : PAUSE_MS) {
        pid_t ended = waitpid(pid, status, WNOHANG);
        if (ended == pid)
            return 0;
        if ((ended < 0 && errno != EINTR) || now_ms() >= deadline_ms)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = pause * 1000000L}, NULL);
    }
}

int await_end(pid_t pid, int64_t deadline_ms, int *status)
{
    if (look(pid, deadline_ms, status) == 0)
        return 0;
    kill(pid, SIGKILL);
    look(pid, now_ms() + KILLED_MS, status);
    return -1;
}
