/* launcher/agent/agent_end.c - how everything on a node ends
 *
 * Ranks are asked, then made to (policy/grace.h), with whatever has left their process
 * groups; when no process is left, output is drained, with a deadline; then the launcher
 * is told. Who is cut off from it does the same at once.
 */
#define LOG_SUBSYS "agent"
#include "launcher/agent/agent_impl.h"

#include "common/err.h"
#include "launcher/agent/sweep.h"

#include <signal.h>

/* When no process of the job is left, a stream that stays open without a byte is closed
 * after this: a process elsewhere holds its other end. What has been written is delivered
 * first, however long its reader takes. */
enum { DRAIN_MS = 2000 };

/* ms: how long ranks have to go before a look for what has left their groups. It costs
 * one or two ms, and most jobs are gone by then. */
enum { STRAYS_MS = 10 };

/* The agents below are not ours to end, nor what an ssh may have below it here; and the
 * interpreter that ranks are forked from stays for the next attempt. */
static enum sweep_rule spare_others(pid_t pid, pid_t group, void *arg)
{
    struct agent *a = arg;
    if (a->ranks && ranks_has_server(a->ranks, pid))
        return SWEEP_SPARE; /* it cleans up behind the ranks, and then goes by itself */
    bool ssh = a->relay && relay_has_ssh(a->relay, pid);
    return ssh || (a->ranks && ranks_helper(a->ranks) == pid) ? SWEEP_SPARE : SWEEP_TAKE;
}

/* A rank that runs gets its signals with its whole group. */
static enum sweep_rule pass_live_groups(pid_t pid, pid_t group, void *arg)
{
    struct agent *a = arg;
    if (a->ranks && ranks_has_group(a->ranks, group))
        return SWEEP_PASS;
    return spare_others(pid, group, arg);
}

/* Is any process of the job left here? */
static bool nothing_left(struct agent *a)
{
    if (!reap_now(a->reap))
        return true;
    if (a->ranks && ranks_running(a->ranks)) /* one may have ended since */
        return false;
    bool others = (a->relay && !relay_is_idle(a->relay)) ||
                  (a->ranks && ranks_helper(a->ranks) > 0);
    return others && sweep_signal(0, spare_others, a) == 0;
}

static void agent_stop_if_alone(struct agent *a)
{
    if (a->gone && !a->up && (!a->relay || relay_is_idle(a->relay)))
        loop_stop(a->loop, 0);
}

void agent_drained(struct agent *a)
{
    if (!a->gone || a->ended || (a->ranks && !ranks_drained(a->ranks)))
        return;
    a->ended = true;
    event_del(a->drain);
    if (a->up)
        link_send(a->up, MSG_ENDED, a->node, NULL, 0, NULL, 0);
}

static void arm_drain(struct agent *a)
{
    event_add(a->drain, &(struct timeval){DRAIN_MS / 1000, 0});
}

/* No process of the job is left; of their output there may be. */
static void agent_gone(struct agent *a)
{
    a->gone = true;
    arm_drain(a);
    agent_drained(a);
}

void agent_check(void *arg)
{
    struct agent *a = arg;
    if (!a->gone && grace_began(a->grace) && nothing_left(a)) {
        grace_done(a->grace);
        agent_gone(a);
    }
    agent_stop_if_alone(a);
}

static void on_strays(evutil_socket_t fd, short what, void *arg)
{
    struct agent *a = arg;
    if (!a->gone && reap_now(a->reap))
        sweep_signal(a->strays_sig, pass_live_groups, a);
}

/* The ranks by their process groups, what has left those one by one. */
static void end_with(int sig, void *arg)
{
    struct agent *a = arg;
    if (a->ranks) {
        ranks_stop_starting(a->ranks, a->again);
        ranks_signal(a->ranks, sig);
        if (sig != SIGKILL)
            ranks_signal(a->ranks, SIGCONT); /* who is stopped hears nothing */
    }
    if (sig != SIGKILL) {
        a->strays_sig = sig;
        event_add(a->strays, &(struct timeval){0, STRAYS_MS * 1000});
    } else if (reap_now(a->reap)) {
        sweep_signal(sig, spare_others, a);
    }
    agent_check(a);
}

static void on_drain_deadline(evutil_socket_t fd, short what, void *arg)
{
    struct agent *a = arg;
    if (a->ranks)
        ranks_cut(a->ranks, a->up != NULL); /* without a launcher nobody reads it */
    if (a->relay && !a->up)
        relay_stop(a->relay, true);
    agent_drained(a);
    if (!a->ended)
        arm_drain(a);
}

void agent_cut_output(struct agent *a)
{
    if (!a->gone || a->ended)
        return;
    if (a->ranks)
        ranks_cut(a->ranks, false);
    agent_drained(a);
}

void agent_end(struct agent *a, int sig, uint32_t grace_ms)
{
    if (!grace_began(a->grace) && nothing_left(a))
        agent_gone(a); /* the usual end */
    else
        grace_begin(a->grace, sig, grace_ms);
}

void agent_end_renew(struct agent *a)
{
    event_del(a->strays);
    grace_renew(a->grace);
    a->gone = a->ended = a->again = false;
}

void agent_cut_off(struct agent *a)
{
    log_sink(NULL, NULL);
    link_close(a->up);
    a->up = NULL;
    a->again = false;
    if (a->ranks)
        ranks_stop_starting(a->ranks, false);
    if (a->relay) {
        relay_stop(a->relay, false);
        event_add(a->drain, &(struct timeval){DRAIN_MS / 1000, 0});
    }
    grace_begin(a->grace, SIGKILL, 0);
    agent_check(a);
}

void agent_orphaned(struct agent *a, const char *why)
{
    log_debug("the launcher is gone: %s", why ? why : "it closed the link");
    agent_cut_off(a);
}

int agent_end_open(struct agent *a, struct ddp_err *err)
{
    a->grace = grace_create(a->loop, end_with, a);
    a->drain = evtimer_new(loop_base(a->loop), on_drain_deadline, a);
    a->strays = evtimer_new(loop_base(a->loop), on_strays, a);
    return a->drain && a->strays ? 0 : err_set(err, "cannot make an event");
}
