/* Real children: start, inheritance, and report of their exit. */
#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/mem.h"
#include "launcher/agent/kill_tree.h"
#include "launcher/transport/child.h"
#include "launcher/transport/program.h"
#include "launcher/transport/reap.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static char *const no_env[] = {(char[]){"PATH=/usr/bin:/bin"}, NULL};

static struct child_spec shell(char **argv)
{
    return (struct child_spec){.path = "/bin/sh",
                               .argv = argv,
                               .env = no_env,
                               .in = -1,
                               .out = -1,
                               .err = -1,
                               .session = true};
}

/* The output of a script that runs as a child. */
static char *output_of(const char *script, struct child_spec change)
{
    struct ddp_err err;
    char *argv[] = {(char[]){"sh"}, (char[]){"-c"}, xstrdup(script), NULL};
    struct child_spec spec = shell(argv);
    enum child_step step;
    int p[2];
    ck_ok(child_init(&err), err);
    ck_assert_int_eq(pipe2(p, O_CLOEXEC), 0);
    spec.out = p[1];
    spec.dir = change.dir;
    spec.cpus = change.cpus;
    spec.cpus_size = change.cpus_size;
    pid_t pid = child_spawn(&spec, &step);
    ck_assert_int_gt(pid, 0);
    close(p[1]);
    char *text = xcalloc(1, 4096);
    for (size_t n = 0; n < 4095;) {
        ssize_t got = read(p[0], text + n, 4095 - n);
        if (got <= 0)
            break;
        n += (size_t)got;
    }
    waitpid(pid, NULL, 0);
    close(p[0]);
    free(argv[2]);
    return text;
}

static void expect_output(const char *script, struct child_spec change, const char *text)
{
    char *got = output_of(script, change);
    ck_assert_str_eq(got, text);
    free(got);
}

TEST(a_child_has_three_descriptors_and_no_more)
{
    int noise[40];
    for (int i = 0; i < 40; i++)
        noise[i] = dup(STDERR_FILENO); /* not even close-on-exec */
    struct ddp_err err;
    ck_ok(child_init(&err), err);
    /* 3 is the directory that ls reads */
    expect_output("exec ls /proc/self/fd", (struct child_spec){0}, "0\n1\n2\n3\n");
    for (int i = 0; i < 40; i++)
        close(noise[i]);
}

TEST(a_child_leads_a_session_of_its_own)
{
    expect_output("set -- $(cat /proc/$$/stat); [ $5 = $$ ] && [ $6 = $$ ] && echo yes",
                  (struct child_spec){0}, "yes\n");
}

TEST(a_child_has_default_signal_actions)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    sigprocmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGTTIN, SIG_IGN);
    expect_output("exec grep -E 'Sig(Blk|Ign)' /proc/self/status", (struct child_spec){0},
                  "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST(a_child_starts_in_its_directory)
{
    expect_output("pwd", (struct child_spec){.dir = "/usr"}, "/usr\n");
}

TEST(a_child_is_bound_to_its_cpus)
{
    cpu_set_t ours, one;
    ck_assert_int_eq(sched_getaffinity(0, sizeof ours, &ours), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &ours))
        cpu++;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    char *text = xasprintf("Cpus_allowed_list:\t%d\n", cpu);
    expect_output("exec grep Cpus_allowed_list /proc/self/status",
                  (struct child_spec){.cpus = &one, .cpus_size = sizeof one}, text);
    free(text);
}

static const struct {
    const char *path, *dir;
    enum child_step step;
    int error;
} unstarted[] = {
    {"/nonesuch", NULL, CHILD_EXEC, ENOENT},
    {"/etc/passwd", NULL, CHILD_EXEC, EACCES},
    {"/", NULL, CHILD_EXEC, EACCES},
    {"/bin/sh", "/nonesuch", CHILD_DIR, ENOENT},
};

LOOP_TEST(a_failed_start_gives_the_reason_and_leaves_no_process, ARRAY_LEN(unstarted))
{
    struct ddp_err err;
    char *argv[] = {(char[]){"x"}, NULL};
    struct child_spec spec = shell(argv);
    enum child_step step;
    spec.path = unstarted[_i].path;
    spec.dir = unstarted[_i].dir;
    ck_ok(child_init(&err), err);
    ck_assert_int_eq(child_spawn(&spec, &step), -1);
    ck_assert_int_eq(errno, unstarted[_i].error);
    ck_assert_int_eq(step, unstarted[_i].step);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1);
    ck_assert_int_eq(errno, ECHILD);
}

TEST(a_child_dies_with_its_parent)
{
    struct ddp_err err;
    int p[2];
    char c;
    ck_assert_int_eq(pipe(p), 0);
    ck_ok(child_init(&err), err);
    pid_t parent = fork();
    if (parent == 0) {
        char *argv[] = {(char[]){"sh"}, (char[]){"-c"}, (char[]){"sleep 100 & wait"},
                        NULL};
        char *sleep_argv[] = {(char[]){"sleep"}, (char[]){"100"}, NULL};
        struct child_spec spec = shell(argv);
        enum child_step step;
        spec.path = "/bin/sleep";
        spec.argv = sleep_argv;
        spec.out = p[1];
        child_spawn(&spec, &step);
        raise(SIGKILL);
    }
    close(p[1]);
    waitpid(parent, NULL, 0);
    ck_assert_int_eq(read(p[0], &c, 1), 0); /* or the test times out */
    close(p[0]);
}

static void *write_later(void *arg)
{
    const int *p = arg;
    char c;
    ssize_t n = read(p[0], &c, 1); /* the descriptors that follow are open now */
    return n == 1 && write(p[3], &c, 1) == 1 ? NULL : arg;
}

TEST(threads_keep_one_table_of_descriptors)
{
    struct ddp_err err;
    int p[4];
    void *failed;
    pthread_t thread;
    ck_assert_int_eq(pipe(p), 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, write_later, p), 0);
    ck_ok(child_init(&err), err);
    ck_assert_int_eq(pipe(p + 2), 0);
    ck_assert_int_eq(write(p[1], "x", 1), 1);
    pthread_join(thread, &failed);
    ck_assert_ptr_null(failed);
}

TEST(a_child_may_lead_a_group_in_our_session)
{
    struct ddp_err err;
    char *argv[] = {(char[]){"sleep"}, (char[]){"100"}, NULL};
    struct child_spec spec = shell(argv);
    enum child_step step;
    spec.path = "/bin/sleep";
    spec.session = false;
    spec.group = true;
    ck_ok(child_init(&err), err);
    pid_t pid = child_spawn(&spec, &step);
    ck_assert_int_gt(pid, 0);
    ck_assert_int_eq(getpgid(pid), pid);
    ck_assert_int_eq(getsid(pid), getsid(0));
    kill(-pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

/* --- reap --------------------------------------------------------------------------- */

struct ends {
    struct loop *loop;
    int n, want, statuses[8];
};

static void on_end(pid_t pid, int status, int64_t at_ns, const struct rusage *used,
                   void *arg)
{
    struct ends *e = arg;
    ck_assert_int_gt(at_ns, 0);
    e->statuses[e->n++] = status;
    if (e->n == e->want)
        loop_stop(e->loop, 0);
}

TEST(every_exit_reaches_its_watcher)
{
    struct ddp_err err;
    struct ends e = {.loop = loop_create(&err), .want = 3};
    struct reap *r = reap_create(e.loop, &err);
    static const char *const scripts[] = {"exit 3", "kill -SEGV $$", "exit 0"};
    ck_ok(child_init(&err), err);
    for (int i = 0; i < 3; i++) {
        char *argv[] = {(char[]){"sh"}, (char[]){"-c"}, xstrdup(scripts[i]), NULL};
        struct child_spec spec = shell(argv);
        enum child_step step;
        reap_watch(r, child_spawn(&spec, &step), on_end, &e);
        free(argv[2]);
    }
    loop_run(e.loop);
    int seen = 0;
    for (int i = 0; i < 3; i++) {
        seen |= e.statuses[i] == 3 << 8 ? 1 : 0;
        seen |= (e.statuses[i] & 0x7f) == SIGSEGV ? 2 : 0;
        seen |= e.statuses[i] == 0 ? 4 : 0;
    }
    ck_assert_int_eq(seen, 7);
    ck_assert(!reap_now(r));
    reap_destroy(r);
    loop_destroy(e.loop);
}

/* A shell that starts a process in another session and exits: we are its parent then. */
TEST(stray_processes_are_found_and_killed)
{
    struct ddp_err err;
    struct loop *loop = loop_create(&err);
    struct reap *r = reap_create(loop, &err);
    char *argv[] = {(char[]){"sh"}, (char[]){"-c"},
                    (char[]){"setsid sleep 100 & (sleep 101 &) ; exit 0"}, NULL};
    struct child_spec spec = shell(argv);
    enum child_step step;
    ck_ok(child_init(&err), err);
    pid_t pid = child_spawn(&spec, &step);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert(reap_now(r));
    ck_assert_int_eq(kill_tree_signal(0, NULL, NULL), 2);
    ck_assert(kill_tree_reap(20000));
    ck_assert_int_eq(kill_tree_signal(0, NULL, NULL), 0);
    ck_assert(!reap_now(r));
    reap_destroy(r);
    loop_destroy(loop);
}

static void on_alarm(int sig) {}

/* A helper of ours, which removes its files and exits after a while. A signal every
 * millisecond ends each sleep of ours early. */
TEST(signals_do_not_shorten_the_wait_for_helpers)
{
    struct sigaction action = {.sa_handler = on_alarm};
    struct itimerval often = {{0, 1000}, {0, 1000}};
    int p[2], status = -1;
    ck_assert_int_eq(pipe(p), 0);
    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    prctl(PR_SET_NAME, "ddprun-test"); /* the child has it before it runs */
    pid_t pid = fork();
    if (pid == 0) {
        struct timespec while_it_cleans = {.tv_nsec = 700 * 1000000};
        nanosleep(&while_it_cleans, NULL);
        status = write(p[1], "x", 1) == 1 ? 0 : 1;
        _exit(status);
    }
    close(p[1]);
    ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &often, NULL), 0);
    bool none_left = kill_tree_reap(20000);
    often = (struct itimerval){0};
    ck_assert_int_eq(setitimer(ITIMER_REAL, &often, NULL), 0);
    ck_assert(none_left);
    char byte;
    ck_assert_msg(read(p[0], &byte, 1) == 1, "the helper was killed");
    close(p[0]);
}

/* --- programs ----------------------------------------------------------------------- */

static void make_file(const char *dir, const char *name, mode_t mode, const char *text)
{
    char *path = xasprintf("%s/%s", dir, name);
    put_file(path, text);
    ck_assert_int_eq(chmod(path, mode), 0);
    free(path);
}

static const struct {
    const char *name, *host;
    int code;
    const char *error; /* %s: the directory; NULL: found */
} programs[] = {
    {"run", NULL, 0, NULL},
    {"./bin/run", NULL, 0, NULL},
    {"./nix", NULL, 127, "cannot run './nix': no such file or directory"},
    {"nix", "n2", 127, "cannot run 'nix' on n2: no such file or directory in PATH"},
    {"here", NULL, 127,
     "cannot run 'here': no such file or directory in PATH; to run the one in '%s' write "
     "'./here'"},
    {"./plain", NULL, 126, "cannot run './plain': permission denied; try chmod +x"},
    {"./train.py", NULL, 126,
     "cannot run './train.py': permission denied; try 'python3 ./train.py' or chmod +x"},
    {"train.py", NULL, 127,
     "cannot run 'train.py': no such file or directory in PATH; to run the one in '%s' "
     "write 'python3 train.py'"},
    {"gone.py", NULL, 127,
     "cannot run 'gone.py': no such file or directory in '%s', nor in PATH"},
    {"./bin", "n2", 126, "cannot run './bin' on n2: it is a directory"},
    {"bin", NULL, 127,
     "cannot run 'bin': no such file or directory in PATH; the one in '%s' is a "
     "directory"},
    {"nix -x", NULL, 127,
     "cannot run 'nix -x': no such file or directory; write its arguments as words of "
     "their own, not in quotes"},
    {"A=1", NULL, 127,
     "cannot run 'A=1': no such file or directory; to set a variable write '-x A=1'"},
    {"", NULL, 127, "cannot run '': no such file or directory in PATH"},
};

LOOP_TEST(a_program_is_found_or_the_error_says_why, ARRAY_LEN(programs))
{
    struct ddp_err err;
    int code = 0;
    char *dir = temp_dir(), *bin = xasprintf("%s/bin", dir);
    char *search = xasprintf("/nonesuch:%s", bin);
    ck_assert_int_eq(mkdir(bin, 0755), 0);
    make_file(bin, "run", 0755, "#!/bin/sh\n");
    make_file(dir, "here", 0755, "#!/bin/sh\n");
    make_file(dir, "plain", 0644, "");
    make_file(dir, "train.py", 0644, "");
    char *path =
        program_find(programs[_i].name, dir, search, programs[_i].host, &code, &err);
    if (programs[_i].error) {
        char *line = xasprintf(programs[_i].error, dir);
        ck_assert_ptr_null(path);
        ck_assert_str_eq(err.text, line);
        ck_assert_int_eq(code, programs[_i].code);
        free(line);
    } else {
        ck_assert_msg(path != NULL, "%s", err.text);
        ck_assert_int_eq(access(path, X_OK), 0);
    }
    free(path);
    free(search);
    free(bin);
    free(dir);
}
