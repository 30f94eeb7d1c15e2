/* The thread of a node's ranks, and children that nobody watches: with a plug-in of the
 * test's own, which holds the thread. */
#include "tests/support/suite.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/agent_impl.h"
#include "launcher/agent/ranks.h"
#include "launcher/transport/child.h"

#include <semaphore.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static sem_t begun, may_return;

static int refuse(void *state, struct msg_job *job, struct ddp_err *err)
{
    sem_wait(&begun); /* the thread is in examine() */
    return err_set(err, "not this one");
}

static void *examine(const char *path, const struct strv *env)
{
    sem_post(&begun);
    sem_wait(&may_return);
    return NULL;
}

static const struct agent_plugin holds = {.name = "holds",
                                          .state_size = sizeof(struct agent *),
                                          .prepare = refuse,
                                          .examine = examine};
const struct agent_plugin *const agent_plugins[] = {&holds, NULL};

static struct agent agent;
static const void *volatile left[2]; /* to a call that does not return: no leak */

static void setup(void)
{
    struct ddp_err err;
    sem_init(&begun, 0, 0);
    sem_init(&may_return, 0, 0);
    ck_ok(child_init(&err), err);
    agent.loop = loop_create(&err);
    ck_assert_ptr_nonnull(agent.loop);
    agent.reap = reap_create(agent.loop, &err);
    ck_assert_ptr_nonnull(agent.reap);
    agent_plugins_init(&agent);
}

static void make_work(struct msg_job *job, struct msg_share *share)
{
    job->id = xstrdup("job");
    job->wdir = xstrdup("/");
    job->nranks = job->nnodes = 1;
    strv_push(&job->argv, "/bin/true");
    share->nlocal = 1;
    share->ranks = xcalloc(1, sizeof *share->ranks);
}

static void assert_unwatched_child_is_reaped(void)
{
    siginfo_t ended;
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOWAIT), 0);
    ck_assert(!reap_now(agent.reap));
}

TEST(a_plugin_that_refuses_leaves_no_hold)
{
    struct msg_job job = {0};
    struct msg_share share = {0};
    const struct agent_orders orders = {.job = &job, .share = &share};
    setup();
    make_work(&job, &share);
    agent_execute(&agent, &orders);
    ck_assert_ptr_nonnull(agent.ranks);
    sem_post(&may_return);
    while (agent.ranks->starting > 0)
        event_base_loop(loop_base(agent.loop), EVLOOP_ONCE);
    event_base_loop(loop_base(agent.loop), EVLOOP_NONBLOCK);
    ck_assert(!agent.ranks->prepared && agent.ranks->next == 0);
    assert_unwatched_child_is_reaped();
    ranks_destroy(agent.ranks);
}

TEST(ranks_whose_thread_is_held_leave_no_hold)
{
    struct ddp_err err;
    setup();
    make_work(&agent.job, &agent.share);
    struct ranks *r = ranks_create(&agent, agent_drained, &err);
    ck_assert_msg(r != NULL, "%s", err.text);
    sem_wait(&begun);
    left[0] = r->place;
    left[1] = r->prep;
    ranks_destroy(r);
    assert_unwatched_child_is_reaped();
    sem_post(&may_return);
}
