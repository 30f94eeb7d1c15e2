/* Hooks of plug-ins on both sides, with tables of plug-ins of the test's own. */
#include "tests/support/suite.h"

#include "common/err.h"
#include "common/loop.h"
#include "common/mem.h"
#include "launcher/agent/hooks.h"
#include "launcher/job/hooks.h"

#include <stdlib.h>
#include <string.h>

/* for agent_send(), which these tests do not call */
void relay_send(struct relay *r, enum msg_type type, const void *m) {}

static char calls[200]; /* "a.tick b.tick " */

struct state {
    const void *owner;
    char name[4]; /* "a" */
};

static const char *name_of(const void *state)
{
    return ((const struct state *)state)->name;
}

static void note(const void *state, const char *what)
{
    strcat(strcat(strcat(strcat(calls, name_of(state)), "."), what), " ");
}

/* --- the launcher's side ------------------------------------------------------------ */

static bool b_stays, b_refuses;

static int a_init(void *state, struct ddp_err *err)
{
    strcpy(((struct state *)state)->name, "a");
    return 0;
}

static int b_init(void *state, struct ddp_err *err)
{
    strcpy(((struct state *)state)->name, "b");
    return b_refuses ? err_set(err, "not with this option") : 0;
}

static int no_init(void *state, struct ddp_err *err)
{
    return 1; /* no part in this job */
}

static void on_prepare(void *state)
{
    note(state, "prepare");
}

static void on_exit_of(void *state, uint32_t rank)
{
    char what[20];
    snprintf(what, sizeof what, "exit%u", rank);
    note(state, what);
}

static bool on_leave(void *state)
{
    note(state, "leave");
    return strcmp(name_of(state), "b") != 0 || !b_stays;
}

static void on_fini(void *state)
{
    note(state, "fini");
}

static void on_run(void *state)
{
    note(state, "run");
}

static void on_job_tick(void *state)
{
    note(state, "tick");
}

static int take_found(void *state, unsigned node, const struct frame *f,
                      struct ddp_err *err)
{
    note(state, "found");
    return node == 3 ? 0 : err_set(err, "not of node 3");
}

static const struct job_message messages[] = {{MSG_FINDING, take_found}, {0}};

static const struct job_plugin none = {.name = "none",
                                       .state_size = sizeof(struct state),
                                       .init = no_init,
                                       .prepare = on_prepare,
                                       .rank_exited = on_exit_of,
                                       .fini = on_fini};
static const struct job_plugin a = {.name = "a",
                                    .state_size = sizeof(struct state),
                                    .init = a_init,
                                    .prepare = on_prepare,
                                    .may_leave = on_leave,
                                    .tick = on_job_tick,
                                    .fini = on_fini};
static const struct job_plugin b = {.name = "b",
                                    .state_size = sizeof(struct state),
                                    .init = b_init,
                                    .prepare = on_prepare,
                                    .rank_exited = on_exit_of,
                                    .may_leave = on_leave,
                                    .run = on_run,
                                    .messages = messages,
                                    .fini = on_fini};
const struct job_plugin *const job_plugins[] = {&none, &a, &b, NULL};

TEST(a_plugin_without_state_takes_no_part)
{
    struct job j = {0};
    struct ddp_err err;
    ck_ok(job_plugins_init(&j, &err), err);
    JOB_HOOKS(&j, prepare);
    JOB_HOOKS(&j, rank_exited, 5);
    JOB_HOOKS(&j, ranks_started); /* no plug-in has this hook */
    job_plugins_fini(&j);
    ck_assert_str_eq(calls, "a.prepare b.prepare b.exit5 a.fini b.fini ");
}

TEST(a_plugin_may_refuse_the_job)
{
    struct job j = {0};
    struct ddp_err err;
    b_refuses = true;
    ck_assert_int_eq(job_plugins_init(&j, &err), -1);
    ck_assert_str_eq(err.text, "not with this option");
    job_plugins_fini(&j);
    ck_assert_str_eq(calls, "a.fini ");
}

TEST(all_are_asked_whether_agents_may_leave)
{
    struct job j = {0};
    struct ddp_err err;
    ck_ok(job_plugins_init(&j, &err), err);
    b_stays = true;
    ck_assert(!JOB_HOOKS_ALL(&j, may_leave));
    b_stays = false;
    ck_assert(JOB_HOOKS_ALL(&j, may_leave));
    ck_assert_str_eq(calls, "a.leave b.leave a.leave b.leave ");
    job_plugins_fini(&j);
}

TEST(a_message_goes_to_the_plugin_that_names_it)
{
    struct job j = {0};
    struct ddp_err err;
    const struct frame found = {.type = MSG_FINDING}, other = {.type = MSG_SAVINGS};
    ck_ok(job_plugins_init(&j, &err), err);
    ck_assert_int_eq(job_plugins_message(&j, 3, &found, &err), 0);
    ck_assert_int_eq(job_plugins_message(&j, 4, &found, &err), -1);
    ck_assert_str_eq(err.text, "not of node 3");
    ck_assert_int_eq(job_plugins_message(&j, 3, &other, &err), 1);
    ck_assert_str_eq(calls, "b.found b.found ");
    job_plugins_fini(&j);
}

TEST(one_plugin_replaces_the_ranks)
{
    struct job j = {0};
    struct ddp_err err;
    ck_ok(job_plugins_init(&j, &err), err);
    job_replace_ranks(&j, &b);
    job_plugins_run(&j);
    ck_assert_str_eq(calls, "b.run ");
    job_plugins_fini(&j);
}

static void stop(evutil_socket_t fd, short what, void *arg)
{
    loop_stop(arg, 0);
}

TEST(a_tick_comes_every_second)
{
    struct job j = {0};
    struct ddp_err err;
    ck_assert(j.loop = loop_create(&err));
    ck_ok(job_plugins_init(&j, &err), err);
    ck_ok(job_plugins_open(&j, &err), err);
    struct event *end = evtimer_new(loop_base(j.loop), stop, j.loop);
    event_add(end, &(struct timeval){2, 500000});
    loop_run(j.loop);
    ck_assert_str_eq(calls, "a.tick a.tick ");
    job_plugins_fini(&j);
    event_free(end);
    loop_destroy(j.loop);
}

/* --- the nodes' side ---------------------------------------------------------------- */

static bool c_busy, c_starts;

static void d_init(void *state)
{
    strcpy(((struct state *)state)->name, "d");
}

static bool on_busy(const void *state)
{
    return c_busy;
}

static bool on_spares(const void *state, pid_t pid)
{
    return pid == 0 || pid == 42;
}

static bool on_start(void *state)
{
    return c_starts;
}

static int on_fd(void *state, uint32_t local)
{
    return local == 0 ? 10 + (*name_of(state) - 'c') : -1;
}

static int set_port(void *state, struct msg_job *job, struct ddp_err *err)
{
    job->master_port = 4711;
    return 0;
}

static void *look_at(const char *path, const struct elf *elf, const struct strv *env)
{
    return xstrdup(strv_env_get(env, "USE"));
}

static int no_program(void *state, const char *path, const void *seen,
                      struct ddp_err *err)
{
    return strcmp(seen, "none") == 0 ? err_set(err, "%s is of no use", path) : 0;
}

static const struct agent_plugin c = {.name = "c",
                                      .state_size = sizeof(struct state),
                                      .busy = on_busy,
                                      .start = on_start,
                                      .spares = on_spares,
                                      .prepare = set_port};
static const struct agent_plugin d = {.name = "d",
                                      .state_size = sizeof(struct state),
                                      .init = d_init,
                                      .rank_fd = on_fd,
                                      .examine = look_at,
                                      .program = no_program};
const struct agent_plugin *const agent_plugins[] = {&c, &d, NULL};

TEST(an_agent_asks_until_one_says_yes)
{
    struct agent agent = {0};
    struct msg_job job = {0};
    struct strv env = {0};
    struct ddp_err err;
    agent_plugins_init(&agent);
    ck_assert(!AGENT_HOOKS_ANY(&agent, busy) && !AGENT_HOOKS_ANY(&agent, start));
    c_busy = c_starts = true;
    ck_assert(AGENT_HOOKS_ANY(&agent, busy) && AGENT_HOOKS_ANY(&agent, start));
    ck_assert(AGENT_HOOKS_ANY(&agent, spares, 0) && AGENT_HOOKS_ANY(&agent, spares, 42));
    ck_assert(!AGENT_HOOKS_ANY(&agent, spares, 43));
    ck_assert_int_eq(agent_plugins_rank_fd(&agent, 0), 11);
    ck_assert_int_eq(agent_plugins_rank_fd(&agent, 1), -1);
    ck_ok(agent_plugins_prepare(&agent, &job, &err), err);
    ck_assert_int_eq((int)job.master_port, 4711);
    strv_push(&env, "USE=much");
    void **seen = agent_plugins_examine("/bin/true", &env);
    ck_ok(agent_plugins_program(&agent, "/bin/true", seen, &err), err);
    agent_plugins_forget(seen);
    strv_env_set(&env, "USE", "none");
    seen = agent_plugins_examine("/bin/false", &env);
    ck_assert_int_eq(agent_plugins_program(&agent, "/bin/false", seen, &err), -1);
    ck_assert_str_eq(err.text, "/bin/false is of no use");
    agent_plugins_forget(seen);
    strv_finish(&env);
    agent_plugins_fini(&agent);
}
