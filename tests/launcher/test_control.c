/* The control socket of a job: finding it, answers and rejections. */
#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/mem.h"
#include "launcher/control/client.h"
#include "launcher/control/control.h"
#include "launcher/control/rundir.h"

#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DEADLINE_MS = 20000 };

static struct loop *loop;
static struct control *control;
static char *dir;
static uint32_t asked_by;

static void open_loop(void)
{
    struct ddp_err err;
    dir = temp_dir();
    setenv("XDG_RUNTIME_DIR", dir, 1);
    signal(SIGPIPE, SIG_IGN);
    loop = loop_create(&err);
    control = control_create(loop, "0123abcd");
}

static void close_loop(void)
{
    control_destroy(control);
    loop_destroy(loop);
    free(dir);
}

static void on_double(struct control *c, uint32_t peer, const json_t *request, void *arg)
{
    json_t *answer =
        json_pack("{s:I}", "is", 2 * json_integer_value(json_object_get(request, "of")));
    asked_by = peer;
    control_reply(c, peer, answer);
    json_decref(answer);
}

struct client {
    pid_t pid; /* 0: it has returned, with `status` */
    int status;
};

/* A turn after its return: the end of its connection has been seen then. */
static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct client *c = arg;
    if (c->pid == 0)
        loop_stop(loop, WIFEXITED(c->status) ? WEXITSTATUS(c->status) : 99);
    else if (waitpid(c->pid, &c->status, WNOHANG) > 0)
        c->pid = 0;
}

/* Serve until the client, in a process of its own, returns: its exit status. */
static int serve(int (*client)(void))
{
    struct client c = {.pid = fork()};
    if (c.pid == 0)
        _exit(client());
    struct event *tick =
        event_new(loop_base(loop), -1, EV_PERSIST | EV_TIMEOUT, on_tick, &c);
    event_add(tick, &(struct timeval){0, 5000});
    int status = loop_run(loop);
    event_free(tick);
    return status;
}

/* A client comes as soon as there is a socket. */
static int connect_soon(const char *job, struct ddp_err *err)
{
    int fd;
    for (int64_t end = now_ms() + DEADLINE_MS;
         (fd = control_connect(job, err)) < 0 && now_ms() < end;)
        usleep(5000);
    return fd;
}

static json_t *ask(int fd, const char *text, struct ddp_err *err)
{
    json_t *request = json_loads(text, 0, NULL);
    json_t *answer = control_ask(fd, request, now_ms() + DEADLINE_MS, err);
    json_decref(request);
    return answer;
}

static int ask_twice(void)
{
    struct ddp_err err;
    int fd = connect_soon("0123ab", &err);
    json_t *first = ask(fd, "{\"do\": \"double\", \"of\": 4}", &err);
    json_t *second = ask(fd, "{\"do\": \"double\", \"of\": 21}", &err);
    bool right = json_integer_value(json_object_get(first, "is")) == 8 &&
                 json_integer_value(json_object_get(second, "is")) == 42;
    json_decref(first);
    json_decref(second);
    return right ? 0 : 1;
}

static int ask_nonsense(void)
{
    struct ddp_err err;
    int fd = connect_soon("0123abcd", &err);
    json_t *none = ask(fd, "{\"do\": \"dance\"}", &err);
    return !none && strcmp(err.text, "unknown request") == 0 ? 0 : 1;
}

static int send_too_much(void)
{
    struct ddp_err err;
    char byte, *much = xcalloc(1, 1 << 20);
    int fd = connect_soon("0123abcd", &err);
    memset(much, 'x', 1 << 20);
    while (send(fd, much, 1 << 20, 0) > 0)
        ;
    free(much);
    return recv(fd, &byte, 1, 0) <= 0 ? 0 : 1;
}

FIXTURE(open_loop, close_loop)

TEST(requests_are_answered_by_their_handler)
{
    control_handle(control, "double", on_double, NULL);
    ck_assert_int_eq(serve(ask_twice), 0);
    /* it has gone: a late answer is dropped */
    ck_assert_uint_eq(control_queued(control, asked_by), SIZE_MAX);
    control_send(control, asked_by, "{}\n", 3);
}

TEST(unknown_requests_are_refused)
{
    ck_assert_int_eq(serve(ask_nonsense), 0);
}

TEST(a_client_that_sends_too_much_is_dropped)
{
    ck_assert_int_eq(serve(send_too_much), 0);
}

static void on_moment(evutil_socket_t fd, short what, void *arg)
{
    loop_stop(loop, 0);
}

/* A name of a socket that does not listen yet is taken for a killed launcher's. */
TEST(the_socket_has_its_name_once_it_listens)
{
    _Alignas(struct inotify_event) char text[4096];
    char *folder = xasprintf("%s/ddprun", dir),
         *name = xasprintf("%d-0123abcd", (int)getpid());
    int fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    ck_assert_int_eq(mkdir(folder, 0700), 0);
    ck_assert_int_ge(inotify_add_watch(fd, folder, IN_CREATE | IN_MOVED_TO), 0);
    struct event *look = event_new(loop_base(loop), fd, EV_READ, on_moment, NULL);
    bool named = false;
    while (!named) {
        event_add(look, &(struct timeval){DEADLINE_MS / 1000, 0});
        loop_run(loop);
        ssize_t n = read(fd, text, sizeof text);
        ck_assert_int_gt(n, 0);
        for (const char *at = text; at < text + n;) {
            const struct inotify_event *e = (const void *)at;
            at += sizeof *e + e->len;
            bool its = strcmp(e->name, name) == 0;
            ck_assert(!its || (e->mask & IN_MOVED_TO));
            named |= its;
        }
    }
    event_free(look);
    close(fd);
    free(name);
    free(folder);
}

static void on_stop(struct control *c, uint32_t peer, const json_t *request, void *arg)
{
    loop_stop(loop, 7);
}

/* Two ask in one turn of the loop, and the first ends it. A sanitizer build sees a leak.
 */
TEST(a_request_that_ends_the_loop_leaves_nothing)
{
    static const char stop[] = "{\"do\": \"stop\"}\n";
    int fds[2][2];
    control_handle(control, "stop", on_stop, NULL);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds[i]), 0);
        control_attach(control, fds[i][0]);
        ck_assert_int_eq(write(fds[i][1], stop, strlen(stop)), (ssize_t)strlen(stop));
    }
    ck_assert_int_eq(loop_run(loop), 7);
    close(fds[0][1]);
    close(fds[1][1]);
}

TEST(without_a_job_the_client_says_so)
{
    struct ddp_err err;
    /* beyond all pids: jobs of other tests are found, too */
    ck_assert_int_eq(control_connect("99999999", &err), -1);
    ck_assert_ptr_nonnull(
        strstr(err.text, "no running job '99999999' of yours on this machine; if "));
}

TEST(an_answer_that_does_not_come_is_reported)
{
    struct ddp_err err;
    int fds[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    json_t *request = json_object();
    ck_assert_ptr_null(control_ask(fds[0], request, now_ms() + 20, &err));
    ck_assert_str_eq(err.text, "the job does not answer");
    shutdown(fds[1], SHUT_WR);
    ck_assert_ptr_null(control_ask(fds[0], request, now_ms() + DEADLINE_MS, &err));
    ck_assert_str_eq(err.text, "the job has ended");
    json_decref(request);
    close(fds[0]);
    close(fds[1]);
}

static int make_socket(const char *folder, void *arg)
{
    struct ddp_err err;
    struct sockaddr_un sa;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    char *path = xasprintf("%s/%s", folder, (const char *)arg);
    ck_ok(rundir_addr(path, &sa, &err), err);
    free(path);
    return bind(fd, (struct sockaddr *)&sa, sizeof sa) == 0 ? fd : -1;
}

static void leave_socket(char *name, bool serves)
{
    struct ddp_err err;
    int fd = rundir_make(make_socket, name, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    if (serves)
        ck_assert_int_eq(listen(fd, 8), 0);
    else
        close(fd);
}

static bool is_there(const char *name)
{
    char *path = xasprintf("%s/ddprun/%s", dir, name);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

static int leave_token(const char *name)
{
    char *path = xasprintf("%s/ddprun/%s", dir, name);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    ck_assert_int_ge(fd, 0);
    free(path);
    return fd;
}

TEST(files_of_killed_launchers_are_removed)
{
    struct ddp_err err;
    leave_socket((char[]){"99999996-aaaa"}, false);
    leave_socket((char[]){".99999996-bbbb"}, false); /* killed before it listened */
    leave_socket((char[]){"99999996-rank0"}, false); /* another's: not looked at */
    close(leave_token(".token-99999996"));
    int held = leave_token(".token-99999997"); /* as by a launcher in a container */
    ck_assert_int_eq(flock(held, LOCK_EX), 0);
    ck_assert_int_eq(control_connect("99999996", &err), -1);
    ck_assert(!is_there("99999996-aaaa"));
    ck_assert(!is_there(".99999996-bbbb"));
    ck_assert(!is_there(".token-99999996"));
    ck_assert(is_there("99999996-rank0"));
    ck_assert(is_there(".token-99999997"));
    close(held);
    rundir_clean(); /* as a launcher does */
    ck_assert(!is_there(".token-99999997"));
}

static char *of_pid(const char *before, pid_t pid, const char *after)
{
    return xasprintf("%s%d%s", before, (int)pid, after);
}

TEST(files_of_a_pid_that_is_used_again_are_removed)
{
    char *ours = of_pid("", getpid(), "-dddd"), *early = of_pid(".", getpid(), "-dddd"),
         *token = of_pid(".token-", getpid(), "");
    leave_socket(ours, false);
    leave_socket(early, false); /* of a launcher, it would listen soon, */
    close(leave_token(token));  /* and lock this */
    rundir_clean();
    ck_assert(!is_there(ours));
    ck_assert(is_there(early));
    ck_assert(is_there(token));
    free(ours);
    free(early);
    free(token);
}

TEST(the_last_file_of_a_killed_launcher_is_removed_with_the_folder)
{
    pid_t pid = fork();
    if (pid == 0)
        _exit(0);
    siginfo_t ended; /* a zombie, as the launcher of a script that does not wait for it */
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOWAIT), 0);
    char *name = of_pid("", pid, "-eeee"), *token = of_pid(".token-", pid, "");
    leave_socket(name, false);
    close(leave_token(token));
    rundir_clean();
    ck_assert(!is_there(""));
    free(name);
    free(token);
}

/* In the first two calls another job has just ended. */
static int make_third(const char *folder, void *count)
{
    if (++*(int *)count < 3)
        ck_assert_int_eq(rmdir(folder), 0);
    char *path = xasprintf("%s/file", folder);
    int fd = open(path, O_WRONLY | O_CREAT, 0600);
    free(path);
    return fd;
}

TEST(a_folder_that_another_job_removes_is_made_again)
{
    struct ddp_err err;
    int calls = 0, fd = rundir_make(make_third, &calls, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    ck_assert_int_eq(calls, 3);
    ck_assert(is_there("file"));
    rundir_leave();
    ck_assert(is_there("file"));
    close(fd);
}

TEST(the_last_job_removes_the_folder)
{
    ck_assert_int_eq(serve(ask_nonsense), 0);
    ck_assert(is_there(""));
    control_destroy(control);
    control = NULL;
    ck_assert(!is_there(""));
}

TEST(several_jobs_are_listed)
{
    struct ddp_err err;
    leave_socket((char[]){"99999997-a0a0a0a0a1"}, true);
    leave_socket((char[]){"99999998-a0a0a0a0b2"}, true);
    ck_assert_int_eq(control_connect("a0a0a0a0", &err), -1);
    ck_assert(
        strcmp(err.text, "2 jobs are running: give one of 99999997, 99999998") == 0 ||
        strcmp(err.text, "2 jobs are running: give one of 99999998, 99999997") == 0);
    ck_assert_int_ge(control_connect("99999998", &err), 0);
    ck_assert_int_ge(control_connect("a0a0a0a0b", &err), 0);
}

TEST(a_job_without_a_runtime_directory_is_found)
{
    struct ddp_err err;
    char *name = xasprintf("%d-cccc", (int)getpid());
    prctl(PR_SET_NAME, "ddprun"); /* other tests' launchers clean up there */
    unsetenv("XDG_RUNTIME_DIR");
    leave_socket(name, true);
    setenv("XDG_RUNTIME_DIR", dir, 1);
    ck_assert_int_ge(control_connect(strtok(name, "-"), &err), 0);
    char *path = xasprintf("/tmp/ddprun-%u/%s-cccc", (unsigned)geteuid(), name);
    ck_assert_int_eq(unlink(path), 0);
    unsetenv("XDG_RUNTIME_DIR");
    rundir_leave();
    free(path);
    free(name);
}

TEST(a_directory_that_others_can_enter_is_refused)
{
    struct ddp_err err;
    char *path = xasprintf("%s/ddprun", dir);
    mkdir(path, 0700);
    ck_assert_int_eq(chmod(path, 0755), 0);
    ck_assert_int_eq(rundir_make(make_socket, NULL, &err), -1);
    ck_assert_ptr_nonnull(
        strstr(err.text, "must be a directory of yours with mode 0700"));
    free(path);
}

static int begin[2]; /* a pipe: the client may connect */
static struct rlimit usual;
static struct event *scarcity;
static long slept; /* times */

static int ask_later(void)
{
    char byte;
    return read(begin[0], &byte, 1) == 1 ? ask_twice() : 98;
}

static long times_slept(void)
{
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    return own.ru_nvcsw;
}

/* While the client connects, the job has no descriptor for half a second. */
static void on_scarcity(evutil_socket_t fd, short what, void *arg)
{
    if (!slept) {
        int lowest = dup(begin[0]);
        close(lowest);
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)lowest, usual.rlim_max});
        ck_assert_int_eq(write(begin[1], "", 1), 1);
        slept = times_slept();
        loop_arm(scarcity, 500);
    } else {
        slept = times_slept() - slept;
        setrlimit(RLIMIT_NOFILE, &usual);
    }
}

TEST(a_job_without_descriptors_does_not_spin)
{
    control_handle(control, "double", on_double, NULL);
    ck_assert_int_eq(pipe(begin), 0);
    getrlimit(RLIMIT_NOFILE, &usual);
    scarcity = loop_timer(loop, on_scarcity, NULL);
    loop_arm(scarcity, 100); /* its socket is there */
    ck_assert_int_eq(serve(ask_later), 0);
    ck_assert_int_gt(slept, 5); /* of a hundred ticks of serve() */
    loop_free(scarcity);
}

/* A job that is stopped accepts nothing; programs that ask it time and again fill its
 * queue, in which the next one would wait for ever. */
TEST(a_job_that_does_not_accept_is_not_awaited)
{
    struct ddp_err err;
    leave_socket((char[]){"99999997-bbbb"}, true);
    int fd = 0;
    for (int i = 0; i < 100 && fd >= 0; i++)
        fd = control_connect("bbbb", &err);
    ck_assert_int_eq(fd, -1);
    ck_assert_str_eq(err.text,
                     "the job 99999997 does not answer: is its ddprun stopped?");
}
