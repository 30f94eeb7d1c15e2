/* tests/launcher/test_signals.c - SIGTSTP and SIGCONT to ddprun, one right after the
 * other */
#include "launcher/job/signals.h"
#include "tests/support/suite.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static void on_stop(void *arg)
{
    kill(getpid(), SIGCONT);
}

static void on_continued(void *arg)
{
    loop_arm(arg, 1); /* after what else has come */
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    loop_stop(arg, 0);
}

/* In a process of its own, which has got `then` before it looks. */
static void goes_on_after(int first, int then)
{
    struct ddp_err err;
    int status;
    pid_t child = fork();
    if (child == 0) {
        static const struct signals_events events = {.stop = on_stop,
                                                     .continued = on_continued};
        struct loop *loop = loop_create(&err);
        struct event *timer = loop_timer(loop, on_timer, loop);
        if (!signals_create(loop, &events, timer, &err))
            _exit(1);
        kill(getpid(), first);
        kill(getpid(), then);
        _exit(loop_run(loop));
    }
    ck_assert_int_eq(waitpid(child, &status, WUNTRACED), child);
    kill(child, SIGKILL);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(a_sigcont_after_a_sigtstp_that_is_not_handled_yet)
{
    goes_on_after(SIGTSTP, SIGCONT);
}

TEST(a_sigcont_while_the_ranks_are_stopped)
{
    goes_on_after(SIGCONT, SIGTSTP);
}
