/* What --host-discovery-script may print; a command of the user's in the background. */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "launcher/alloc/discovery.h"
#include "launcher/transport/child.h"
#include "launcher/transport/shell_command.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct {
    const char *text, *hosts; /* "name:slots ", 0 slots: not given */
    const char *error;        /* a part of it; NULL: none */
} answers[] = {
    {"", "", NULL},
    {"\n \r\n\t\n", "", NULL},
    {"n1:4\nn2:2\n", "n1:4 n2:2 ", NULL},
    {"n1:4\r\nn2\r\n", "n1:4 n2:0 ", NULL},
    {"n1:4", "n1:4 ", NULL},
    {"10.0.0.7:8\n", "10.0.0.7:8 ", NULL},
    {"n1:4\nn1:2\n", NULL, "n1"},
    {"n1:0\n", NULL, "--host-discovery-script:1:"},
    {"n1:-1\n", NULL, "--host-discovery-script:1:"},
    {"n1:4 x y z\n", NULL, "--host-discovery-script:1:"},
    {"n1:4\n<html>\n", NULL, "--host-discovery-script:2:"},
};

LOOP_TEST(hosts_are_read_or_the_line_is_named, ARRAY_LEN(answers))
{
    struct alloc a = {0};
    struct ddp_err err = {""};
    const char *text = answers[_i].text;
    int rc = discovery_parse(text, strlen(text), &a, &err);
    ck_assert_msg(rc == (answers[_i].error ? -1 : 0), "%s", err.text);
    if (answers[_i].error)
        ck_assert_msg(strstr(err.text, answers[_i].error) != NULL, "%s", err.text);
    char *found = xstrdup("");
    for (size_t i = 0; i < a.nnodes; i++) {
        char *more = xasprintf("%s%s:%d ", found, a.nodes[i].name, a.nodes[i].slots);
        free(found);
        found = more;
    }
    if (answers[_i].hosts)
        ck_assert_str_eq(found, answers[_i].hosts);
    free(found);
    alloc_clear(&a);
}

static const struct {
    const char *command, *output, *trouble; /* NULL: none */
} commands[] = {
    {"echo a; echo b; echo c >&2", "a\nb\n", NULL},
    {"true", "", NULL},
    {"echo first >&2; echo 'no GPU ' >&2; exit 3", "", "exited with status 3: 'no GPU'"},
    {"printf 'red\\r\\033[31mno\\tGPU\\r\\n' >&2; exit 3", "",
     "exited with status 3: '?[31mno?GPU'"},
    {"kill -9 $$", "", "died of SIGKILL"},
    {"echo x; sleep 1000", "x\n", "had not ended after 0.3 s"},
    {"yes", NULL, "printed more than 4 KiB"},
    {"yes >&2", NULL, "had not ended after 0.3 s: 'y'"},
    {"sleep 1000 & echo $!", NULL, NULL}, /* it holds our pipes */
    {"/proc/none/x 2>/dev/null", "", "exited with status 127"},
};

struct outcome {
    struct loop *loop;
    char *output, *trouble; /* owned */
};

static void on_ended(const char *trouble, const char *output, size_t size, void *arg)
{
    struct outcome *o = arg;
    ck_assert_uint_eq(strlen(output), size);
    o->output = xstrdup(output);
    o->trouble = xstrdup(trouble);
    loop_stop(o->loop, 0);
}

LOOP_TEST(a_command_has_a_time_limit_and_a_bound, ARRAY_LEN(commands))
{
    struct ddp_err err;
    struct outcome o = {.loop = loop_create(&err)};
    struct reap *reap = reap_create(o.loop, &err);
    ck_ok(child_init(&err), err);
    bool late = commands[_i].trouble && strstr(commands[_i].trouble, "0.3 s");
    const struct shell_command_spec spec = {
        .text = commands[_i].command, .limit_ms = late ? 300 : 50000, .most = 4096};
    struct shell_command *c =
        shell_command_start(o.loop, reap, &spec, on_ended, &o, &err);
    ck_assert_ptr_nonnull(c);
    loop_run(o.loop);
    ck_assert_int_eq(shell_command_group(c), 0);
    if (commands[_i].output)
        ck_assert_str_eq(o.output, commands[_i].output);
    else if (!commands[_i].trouble) /* a child that it has left */
        kill((pid_t)atol(o.output), SIGKILL);
    if (commands[_i].trouble)
        ck_assert_str_eq(o.trouble, commands[_i].trouble);
    else
        ck_assert_ptr_null(o.trouble);
    free(o.output);
    free(o.trouble);
    shell_command_destroy(c);
    reap_destroy(reap);
    loop_destroy(o.loop);
    child_finish();
}

static void on_block(evutil_socket_t fd, short what, void *arg)
{
    usleep(4000 * 1000);
}

TEST(a_limit_does_not_count_time_in_which_this_process_did_not_run)
{
    struct ddp_err err;
    struct outcome o = {.loop = loop_create(&err)};
    struct reap *reap = reap_create(o.loop, &err);
    ck_ok(child_init(&err), err);
    const struct shell_command_spec spec = {
        .text = "sleep 4.5; echo done", .limit_ms = 3000, .most = 4096};
    struct event *block = loop_timer(o.loop, on_block, NULL);
    loop_arm(block, 10);
    struct shell_command *c =
        shell_command_start(o.loop, reap, &spec, on_ended, &o, &err);
    ck_assert_ptr_nonnull(c);
    loop_run(o.loop);
    ck_assert_ptr_null(o.trouble);
    ck_assert_str_eq(o.output, "done\n");
    free(o.output);
    shell_command_destroy(c);
    loop_free(block);
    reap_destroy(reap);
    loop_destroy(o.loop);
    child_finish();
}

TEST(a_command_that_is_not_wanted_any_more_is_killed)
{
    struct ddp_err err;
    struct outcome o = {.loop = loop_create(&err)};
    struct reap *reap = reap_create(o.loop, &err);
    ck_ok(child_init(&err), err);
    const struct shell_command_spec spec = {
        .text = "sleep 1000", .limit_ms = 50000, .most = 4096};
    struct shell_command *c =
        shell_command_start(o.loop, reap, &spec, on_ended, &o, &err);
    ck_assert_ptr_nonnull(c);
    pid_t group = shell_command_group(c);
    shell_command_destroy(c);
    while (reap_now(reap)) /* until no child is left */
        ;
    ck_assert_int_eq(kill(-group, 0), -1);
    ck_assert_int_eq(errno, ESRCH);
    ck_assert_ptr_null(o.output);
    reap_destroy(reap);
    loop_destroy(o.loop);
    child_finish();
}

/* The process of a launcher that will be killed. */
static _Noreturn void run_command(const char *text)
{
    struct ddp_err err;
    struct outcome o = {.loop = loop_create(&err)};
    struct reap *reap = reap_create(o.loop, &err);
    const struct shell_command_spec spec = {
        .text = text, .limit_ms = 300000, .most = 4096};
    if (child_init(&err) == 0 &&
        shell_command_start(o.loop, reap, &spec, on_ended, &o, &err))
        loop_run(o.loop);
    _exit(1);
}

/* What it has started holds a FIFO open for writing. */
TEST(a_command_ends_when_its_launcher_is_killed)
{
    char *dir = temp_dir(), *fifo = xasprintf("%s/fifo", dir), byte;
    char *text = xasprintf("(sleep 300; :) 3>'%s' & wait", fifo);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    pid_t pid = fork();
    if (pid == 0)
        run_command(text);
    int fd = open(fifo, O_RDONLY); /* waits until it runs */
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_int_eq(read(fd, &byte, 1), 0); /* no writer is left */
    close(fd);
    free(text);
    free(fifo);
    free(dir);
}
