/* The thread of a node's ranks, and children that nobody watches: with a plug-in of the
 * test's own, which holds the thread. The ends of a rank's streams. */
#include "tests/support/suite.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/agent_impl.h"
#include "launcher/agent/ranks.h"
#include "launcher/transport/child.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static sem_t begun, may_return;

static int refuse(void *state, struct msg_job *job, struct ddp_err *err)
{
    sem_wait(&begun); /* the thread is in examine() */
    return err_set(err, "not this one");
}

static void *examine(const char *path, const struct elf *elf, const struct strv *env)
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

static int ends[2]; /* of file, as reported */

static size_t grant(size_t n, void *arg)
{
    return n;
}

static void on_out(struct worker_proc *w, unsigned stream, const void *data, size_t n,
                   void *arg)
{
    ends[stream] += n == 0;
}

static const struct worker_events worker_events = {grant, on_out, NULL, NULL};

TEST(a_stream_ends_when_it_is_empty_and_nobody_can_write)
{
    int theirs[3];
    setup();
    struct worker_proc *w =
        worker_create(agent.loop, agent.reap, 0, &worker_events, NULL);
    ck_assert_int_eq(worker_open(w, false, NULL, theirs), 0);
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    worker_adopt(w, pid, -1);
    waitpid(pid, NULL, 0);

    ck_assert_int_eq(write(theirs[1], "x", 1), 1);
    close(theirs[1]);
    worker_cut(w, CUT_ENDED);
    ck_assert(ends[0] == 0 && ends[1] == 0); /* a byte is unread; a writer is left */
    close(theirs[2]);
    worker_cut(w, CUT_ENDED);
    ck_assert(ends[0] == 0 && ends[1] == 1 && !worker_drained(w));
    worker_cut(w, CUT_IDLE);
    ck_assert_int_eq(ends[0], 0);
    worker_cut(w, CUT_ALL);
    ck_assert(ends[0] == 1 && ends[1] == 1 && worker_drained(w));
    worker_destroy(w);
}

/* They are closed once: by then another thread may have those numbers. */
TEST(a_start_that_lacks_descriptors_has_none)
{
    int theirs[3];
    struct rlimit before;
    setup();
    struct worker_proc *w =
        worker_create(agent.loop, agent.reap, 0, &worker_events, NULL);
    int next = dup(0);
    close(next);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)next + 2, before.rlim_max});
    ck_assert_int_eq(worker_open(w, false, NULL, theirs), -1);
    ck_assert_int_eq(errno, EMFILE);
    setrlimit(RLIMIT_NOFILE, &before);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(theirs[i], -1);
    worker_destroy(w);
}
