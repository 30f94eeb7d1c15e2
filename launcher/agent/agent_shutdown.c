/* launcher/agent/agent_shutdown.c - shutdown of all processes on a node
 *
 *     state         ends when                     limit
 *     active        TERMINATE arrives, or the     none
 *                   link to the launcher breaks
 *     terminating   no process of the job is      the steps of policy/grace.h; processes
 *                   left                          that remain are reported and left
 *     draining      all output is sent            that of TERMINATE, else none while
 *                                                 output flows; then streams are closed
 *     ended         RESTART or JOB arrives, or    the launcher's
 *                   SHUTDOWN
 *
 * Processes that have left their rank's process group are found by a scan of /proc.
 * An agent without a launcher passes through the same states, with SIGKILL at once.
 */
#define LOG_SUBSYS "agent"
#include "launcher/agent/agent_impl.h"

#include "common/log.h"
#include "common/mem.h"
#include "launcher/agent/kill_tree.h"
#include "launcher/agent/ranks.h"

#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

/* ms: in `draining`, a stream that stays open and idle is closed after this: a process
 * that is not of the job holds its other end. */
enum { IDLE_STREAM_MS = 2000 };

/* ms: delay before a stopped rank is continued, as it handles no signals, and before the
 * scan for processes outside the ranks' groups. The scan takes one or two ms, and most
 * jobs have ended by then. LINGER_MS: the time for processes to end by themselves that
 * ranks have left which were not stopped: filters of their output. */
enum { STRAYS_MS = 10, LINGER_MS = 1000 };

/* Spare the ssh processes to agents below, and those of plug-ins, with children. */
static enum kill_tree_rule spare_others(const struct ancestry_proc *p, void *arg)
{
    struct agent *a = arg;
    bool ssh = a->relay && relay_has_ssh(a->relay, p->pid);
    return ssh || AGENT_HOOKS_ANY(a, spares, p->pid) ? KILL_TREE_SPARE : KILL_TREE_TAKE;
}

/* squashfuse_ll, fuse2fs, fuse-overlayfs; by Apptainer, outside a rank's group. They hold
 * the rank's image, and end by themselves when the rank has ended. */
static bool is_fuse_server(const char *name)
{
    return strncmp(name, "fuse", 4) == 0 || strncmp(name, "squashfuse", 10) == 0;
}

/* A running rank gets its signals with its whole group. */
static enum kill_tree_rule pass_live_groups(const struct ancestry_proc *p, void *arg)
{
    struct agent *a = arg;
    if (a->ranks && (ranks_has_group(a->ranks, p->group) ||
                     (ranks_running(a->ranks) && is_fuse_server(p->name))))
        return KILL_TREE_PASS;
    return spare_others(p, arg);
}

/* LINGER_SOME spares the groups of ranks that have exited by themselves, and LINGER_OVER
 * signals only those. */
static enum kill_tree_rule pass_by_linger(const struct ancestry_proc *p, void *arg)
{
    struct agent *a = arg;
    enum kill_tree_rule rule = pass_live_groups(p, arg);
    bool some = a->linger == LINGER_SOME || a->linger == LINGER_OVER;
    if (rule != KILL_TREE_TAKE || !some)
        return rule;
    bool left = ranks_has_left(a->ranks, p->group);
    return left == (a->linger == LINGER_OVER) ? KILL_TREE_TAKE : KILL_TREE_PASS;
}

/* Is any process of the job left here? */
static bool nothing_left(struct agent *a)
{
    if (!reap_now(a->reap) && !(a->ranks && ranks_starting(a->ranks)))
        return true;
    /* one may have ended, or been started, since */
    if (a->ranks && (ranks_running(a->ranks) || ranks_starting(a->ranks)))
        return false;
    if (AGENT_HOOKS_ANY(a, busy))
        return false;
    bool others = (a->relay && !relay_is_idle(a->relay)) || AGENT_HOOKS_ANY(a, spares, 0);
    return others && kill_tree_signal(0, spare_others, a) == 0;
}

static void agent_move(struct agent *a, enum agent_state to)
{
    static const char *const names[] = {"active", "terminating", "draining", "ended"};
    log_debug("%s -> %s", names[a->state], names[to]);
    a->state = to;
}

static void agent_stop_if_alone(struct agent *a)
{
    if (a->state >= AGENT_DRAINING && !a->up && (!a->relay || relay_is_idle(a->relay)))
        loop_stop(a->loop, 0);
}

void agent_drained(struct agent *a)
{
    if (a->state != AGENT_DRAINING || (a->ranks && !ranks_drained(a->ranks)))
        return;
    agent_move(a, AGENT_ENDED);
    event_del(a->drain);
    agent_report_late(a);
    agent_send(a, MSG(terminated));
}

static void arm_drain(struct agent *a)
{
    loop_arm(a->drain, a->drain_ms > 0 ? a->drain_ms : IDLE_STREAM_MS);
}

static void agent_drain(struct agent *a)
{
    grace_stop(a->grace);
    agent_move(a, AGENT_DRAINING);
    arm_drain(a);
    if (a->ranks) /* the loop would find most ends one by one */
        ranks_cut(a->ranks, CUT_ENDED);
    agent_drained(a);
}

static void on_drain_timer(evutil_socket_t fd, short what, void *arg)
{
    struct agent *a = arg;
    bool all =
        a->drain_ms > 0 || !a->up; /* without a launcher the output has no reader */
    if (a->ranks && a->state == AGENT_DRAINING)
        ranks_cut(a->ranks, all ? CUT_ALL : CUT_IDLE);
    if (a->relay && !a->up)
        relay_stop(a->relay, true);
    agent_drained(a);
    if (a->state != AGENT_ENDED)
        arm_drain(a);
}

void agent_check(void *arg)
{
    struct agent *a = arg;
    if (a->state == AGENT_TERMINATING && nothing_left(a))
        agent_drain(a);
    agent_stop_if_alone(a);
}

/* Processes that survive SIGKILL hang in the kernel, or belong to another user. */
static void on_unkillable(void *arg)
{
    struct agent *a = arg;
    char host[HOST_NAME_MAX + 1] = "";
    OWNED char *who = kill_tree_describe(spare_others, a);
    gethostname(host, sizeof host - 1);
    OWNED char *line =
        xasprintf("ddprun: warning: left behind on %s, as SIGKILL does not end it: "
                  "%s",
                  host, who ? who : "a process that cannot be seen");
    agent_send(a, MSG(log, LOG_WARN, line));
    agent_drain(a);
    agent_stop_if_alone(a);
}

/* Such a process may be the program itself, in the background. */
static void report_lingering(struct agent *a)
{
    OWNED char *who = kill_tree_describe(spare_others, a);
    if (who)
        agent_send(a, MSG(left, who));
}

static void on_strays(evutil_socket_t fd, short what, void *arg)
{
    struct agent *a = arg;
    if (a->state != AGENT_TERMINATING || !reap_now(a->reap))
        return;
    if (a->linger == LINGER_ALL)
        report_lingering(a);
    if (a->ranks && !a->continued)
        ranks_signal(a->ranks, SIGCONT);
    a->continued = true;
    if (a->ranks && ranks_starting(a->ranks)) { /* it gets its signal then, and once */
        loop_arm(a->strays, STRAYS_MS);
        return;
    }
    kill_tree_signal(a->end_sig, pass_by_linger, a);
    bool again = a->linger == LINGER_SOME;
    a->linger = again ? LINGER_OVER : LINGER_NONE;
    if (again)
        loop_arm(a->strays, LINGER_MS - STRAYS_MS);
}

/* Signal the ranks by process group, and each process outside those groups by pid. */
static void end_with(int sig, void *arg)
{
    struct agent *a = arg;
    if (a->ranks) {
        ranks_stop_starting(a->ranks, a->again);
        ranks_signal(a->ranks, sig);
    }
    a->end_sig = sig;
    a->continued = false;
    if (sig != SIGKILL) {
        loop_arm(a->strays, a->linger == LINGER_ALL ? LINGER_MS : STRAYS_MS);
    } else if (reap_now(a->reap)) {
        kill_tree_signal(sig, spare_others, a);
    }
    agent_check(a);
}

void agent_end(struct agent *a, int sig, uint32_t grace_ms, uint32_t drain_ms)
{
    bool usual = a->state == AGENT_ACTIVE && nothing_left(a);
    bool lingers = sig == SIGTERM && drain_ms == 0 && a->ranks && !usual;
    a->drain_ms = drain_ms;
    a->linger = !lingers || !ranks_has_left(a->ranks, 0) ? LINGER_NONE
                : ranks_succeeded(a->ranks)              ? LINGER_ALL
                : a->again ? LINGER_NONE /* data loaders would delay the next attempt */
                           : LINGER_SOME;
    if (a->state == AGENT_ACTIVE)
        agent_move(a, AGENT_TERMINATING);
    if (usual || a->state == AGENT_DRAINING)
        agent_drain(a);
    else if (a->state == AGENT_TERMINATING)
        grace_begin(a->grace, sig, grace_ms);
}

void agent_kill(struct agent *a)
{
    if (a->state == AGENT_TERMINATING)
        grace_begin(a->grace, SIGKILL, 0);
}

void agent_shutdown_reset(struct agent *a)
{
    event_del(a->strays);
    a->end_sig = 0;
    agent_move(a, AGENT_ACTIVE);
    a->again = false;
}

void agent_cut_off(struct agent *a)
{
    log_sink(NULL, NULL);
    link_close(a->up);
    a->up = NULL;
    a->again = false;
    if (a->ranks)
        ranks_stop_starting(a->ranks, false);
    AGENT_HOOKS(a, stop, false);
    if (a->relay)
        relay_stop(a->relay, false);
    if (a->state < AGENT_DRAINING)
        agent_end(a, SIGKILL, 0, 0);
    arm_drain(a);
    agent_check(a);
}

void agent_orphaned(struct agent *a, const char *why)
{
    log_debug("lost the launcher: %s", why ? why : "it closed the link");
    a->orphaned = true;
    agent_cut_off(a);
}

void agent_shutdown_init(struct agent *a)
{
    a->grace = grace_create(a->loop, end_with, on_unkillable, a);
    grace_before_kill(a->grace, agent_plugins_before_kill);
    a->drain = loop_timer(a->loop, on_drain_timer, a);
    a->strays = loop_timer(a->loop, on_strays, a);
}
