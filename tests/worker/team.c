/* tests/worker/team.c - see team.h */
#include "tests/worker/team.h"

#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/sock.h"
#include "rendezvous/server/server.h"

#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TEAM_MAX = 80, TEAMS_MAX = 8, PATIENCE_MS = 240000 };

const struct team team_layouts[TEAM_LAYOUTS] = {
    {.size = 1},
    {.size = 2},
    {.size = 3},
    {.size = 4},
    {.size = 5},
    {.size = 6},
    {.size = 7},
    {.size = 8},
    {.size = 2, .backend = "tcp"},
    {.size = 3, .backend = "tcp"},
    {.size = 4, .backend = "tcp"},
    {.size = 5, .backend = "tcp"},
    {.size = 6, .backend = "tcp"},
    {.size = 7, .backend = "tcp"},
    {.size = 8, .backend = "tcp"},
    {.size = 3, .layout = "aab"},
    {.size = 4, .layout = "aabb"},
    {.size = 4, .layout = "abab"},
    {.size = 6, .layout = "abbcca"},
    {.size = 8, .layout = "aaabbbcc"},
};

static void set_number(const char *name, int n)
{
    char text[16];
    snprintf(text, sizeof text, "%d", n);
    setenv(name, text, 1);
}

static void play(const struct team *t, int rank, int port,
                 void (*fn)(struct ddp_group *g, const void *arg), const void *arg)
{
    struct ddp_err err;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    set_number("RANK", rank);
    set_number("WORLD_SIZE", t->size);
    set_number("MASTER_PORT", port);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    if (t->layout)
        setenv("DDP_HOST_ID", (char[]){t->layout[rank], '\0'}, 1);
    struct ddp_group_options o = {.rank = -1,
                                  .backend = t->backend,
                                  .meeting = t->meeting,
                                  .timeout_ms = t->timeout_ms ? t->timeout_ms : 60000,
                                  .arena_bytes = 48 << 20};
    struct ddp_group *g = ddp_group_init(&o, &err);
    if (!g) {
        fprintf(stderr, "rank %d: %s\n", rank, err.text);
        _exit(3);
    }
    fn(g, arg);
    ddp_group_destroy(g);
    exit(0); /* not _exit(): LeakSanitizer runs at exit */
}

void team_fail(struct ddp_group *g, const char *file, int line, const char *fmt, ...)
{
    char text[700];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    fprintf(stderr, "%s:%d: rank %d of %d (%s): %s\n", file, line, ddp_group_rank(g),
            ddp_group_size(g), ddp_group_backend(g), text);
    _exit(1);
}

/* In which some process waited for a CPU, since the boot; -1: the kernel does not say. */
static int64_t contended_ms(void)
{
    int64_t us = -1000;
    FILE *f = fopen("/proc/pressure/cpu", "re");
    if (f && fscanf(f, "some %*s %*s %*s total=%" SCNd64, &us) != 1)
        us = -1000;
    if (f)
        fclose(f);
    return us / 1000;
}

struct team_watch team_watch(void)
{
    return (struct team_watch){now_ms(), contended_ms()};
}

bool team_is_soon(struct team_watch since)
{
    enum { SOON_MS = 3000, LATEST_MS = 20000 };
    int64_t took = now_ms() - since.at_ms;
    if (took < SOON_MS || took >= LATEST_MS)
        return took < SOON_MS;
    int64_t contended = contended_ms();
    return contended < 0 || took - (contended - since.contended_ms) < SOON_MS;
}

/* -1: not ended in time. */
static int wait_for(pid_t pid, int64_t deadline_ms)
{
    for (;;) {
        int status;
        if (waitpid(pid, &status, WNOHANG) == pid)
            return status;
        if (now_ms() >= deadline_ms)
            return -1;
        nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
    }
}

/* fork() that must not fail: killing pid -1 would kill every process. */
static pid_t must_fork(void)
{
    pid_t pid = fork();
    ck_assert_msg(pid >= 0, "cannot start another process");
    return pid;
}

pid_t team_server(int *port)
{
    struct ddp_err err;
    int listener = sock_listen("127.0.0.1", 0, port, &err);
    ck_assert_msg(listener >= 0, "%s", err.text);
    pid_t pid = must_fork();
    if (pid == 0) {
        struct server_options options = {.listen_fd = listener};
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        struct loop *loop = loop_create(&err);
        if (loop && server_create(loop, &options, &err))
            loop_run(loop);
        _exit(1);
    }
    close(listener);
    return pid;
}

void team_stop(int64_t after_ms, int64_t ms)
{
    pid_t pid = getpid();
    if (fork() != 0)
        return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sleep_ms(after_ms);
    kill(pid, SIGSTOP);
    sleep_ms(ms);
    kill(pid, SIGCONT);
    _exit(0);
}

void *team_shared(size_t bytes)
{
    void *at =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert(at != MAP_FAILED);
    return at;
}

/* A team that is running. */
struct playing {
    const struct team *team;
    pid_t server, ranks[TEAM_MAX];
    int64_t deadline_ms;
};

static void team_start(struct playing *p, const struct team *t,
                       void (*fn)(struct ddp_group *g, const void *arg), const void *arg)
{
    int port;
    *p = (struct playing){.team = t,
                          .deadline_ms = now_ms() + PATIENCE_MS + t->timeout_ms};
    ck_assert_int_le(t->size, TEAM_MAX);
    p->server = team_server(&port);
    for (int r = 0; r < t->size; r++) {
        p->ranks[r] = must_fork();
        if (p->ranks[r] == 0)
            play(t, r, port, fn, arg);
    }
}

/* Returns how many ranks did not end as expected. */
static int team_wait(struct playing *p)
{
    const struct team *t = p->team;
    int failed = 0;
    for (int r = 0; r < t->size; r++) {
        int status = wait_for(p->ranks[r], p->deadline_ms);
        bool dead = status != -1 && WIFSIGNALED(status);
        bool fine = t->expect_dead == r + 1 ? dead : status == 0;
        if (status == -1) {
            kill(p->ranks[r], SIGKILL);
            waitpid(p->ranks[r], NULL, 0);
        }
        if (!fine) {
            fprintf(stderr, "rank %d of %d (%s, %s): %s %d\n", r, t->size,
                    t->layout ? t->layout : "one host", t->backend ? t->backend : "-",
                    dead ? "signal" : "status",
                    dead ? WTERMSIG(status) : WEXITSTATUS(status));
            failed++;
        }
    }
    kill(p->server, SIGKILL);
    waitpid(p->server, NULL, 0);
    return failed;
}

void assert_teams(const struct team *teams, size_t n,
                  void (*fn)(struct ddp_group *g, const void *arg),
                  const void *const *args)
{
    struct playing playing[TEAMS_MAX];
    int failed = 0;
    ck_assert_uint_le(n, TEAMS_MAX);
    for (size_t i = 0; i < n; i++)
        team_start(&playing[i], &teams[i], fn, args ? args[i] : NULL);
    for (size_t i = 0; i < n; i++)
        failed += team_wait(&playing[i]);
    ck_assert_int_eq(failed, 0);
}

void assert_team(const struct team *t, void (*fn)(struct ddp_group *g, const void *arg),
                 const void *arg)
{
    assert_teams(t, 1, fn, &arg);
}
