/* Listeners: what the callback may do, and no free descriptor. */
#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/listener.h"
#include "common/log.h"
#include "common/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { CALLERS = 4, TURNS = 4, LIMIT = 64 };

struct test {
    struct loop *loop;
    struct listener *listener;
    int callers[CALLERS], accepted, full;
    bool once, keeps;
    int kept[CALLERS];
    int taken[LIMIT], ntaken; /* all other descriptors */
    int warnings, error;
};

int __real_accept4(int fd, struct sockaddr *from, socklen_t *size, int flags);
int __wrap_accept4(int fd, struct sockaddr *from, socklen_t *size, int flags);
static int accept_error; /* 0: none */

int __wrap_accept4(int fd, struct sockaddr *from, socklen_t *size, int flags)
{
    if (!accept_error)
        return __real_accept4(fd, from, size, flags);
    errno = accept_error;
    return -1;
}

static void on_log(enum log_level level, const char *line, void *arg)
{
    struct test *t = arg;
    ck_assert_ptr_nonnull(strstr(line, "warning: connections to a test are delayed: "));
    ck_assert_ptr_nonnull(strstr(line, strerror(t->error)));
    t->warnings++;
}

static void on_caller(int fd, const struct sockaddr *from, void *arg)
{
    struct test *t = arg;
    int flags = fcntl(fd, F_GETFL);
    ck_assert_int_eq(from->sa_family, AF_INET);
    ck_assert(flags & O_NONBLOCK && fcntl(fd, F_GETFD) & FD_CLOEXEC);
    if (t->keeps)
        t->kept[t->accepted] = fd;
    else
        close(fd);
    t->accepted++;
    if (t->once) {
        listener_destroy(t->listener);
        t->listener = NULL;
    }
}

static void begin(struct test *t)
{
    struct ddp_err err;
    int port, fd;
    log_sink(on_log, t);
    t->loop = loop_create(&err);
    fd = sock_listen("127.0.0.1", 0, &port, &err);
    ck_assert_msg(fd >= 0, "%s", err.text);
    t->listener = listener_create(t->loop, fd, "a test", on_caller, t);
    ck_assert_int_eq(listener_fd(t->listener), fd);
    for (int i = 0; i < CALLERS; i++) {
        t->callers[i] = sock_connect("127.0.0.1", port, now_ms() + 20000, false, &err);
        ck_assert_msg(t->callers[i] >= 0, "%s", err.text);
    }
}

static void end(struct test *t)
{
    for (int i = 0; i < CALLERS; i++)
        close(t->callers[i]);
    listener_destroy(t->listener);
    loop_destroy(t->loop);
}

TEST(the_callback_may_destroy_it)
{
    struct test t = {.once = true};
    begin(&t);
    for (int i = 0; i < TURNS; i++)
        event_base_loop(loop_base(t.loop), EVLOOP_ONCE | EVLOOP_NONBLOCK);
    ck_assert_int_eq(t.accepted, 1);
    ck_assert_int_eq(listener_fd(t.listener), -1);
    end(&t);
}

TEST(those_that_wait_are_accepted_in_one_turn)
{
    struct test t = {0};
    begin(&t);
    event_base_loop(loop_base(t.loop), EVLOOP_ONCE | EVLOOP_NONBLOCK);
    ck_assert_int_eq(t.accepted, CALLERS);
    end(&t);
}

static void take_all_descriptors(struct test *t)
{
    while (t->ntaken < LIMIT &&
           (t->taken[t->ntaken] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0)
        t->ntaken++;
    ck_assert_int_eq(errno, EMFILE);
}

static void give_back_descriptors(struct test *t)
{
    while (t->ntaken > 0)
        close(t->taken[--t->ntaken]);
}

LOOP_TEST(without_descriptors_or_memory_the_loop_sleeps_and_connections_wait, 4)
{
    static const int errors[] = {EMFILE, ENFILE, ENOBUFS, ENOMEM};
    struct test t = {.error = errors[_i]};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){LIMIT, LIMIT}), 0);
    begin(&t);
    if (t.error == EMFILE)
        take_all_descriptors(&t);
    else
        accept_error = t.error;

    /* each turn but the first is a pause; without one they would be microseconds */
    int64_t began = now_ms();
    for (int i = 0; i < TURNS; i++) {
        event_base_loop(loop_base(t.loop), EVLOOP_ONCE);
        ck_assert_int_eq(t.warnings, 1);
    }
    ck_assert_int_ge(now_ms() - began, 150);
    ck_assert_int_eq(t.accepted, 0);

    give_back_descriptors(&t);
    accept_error = 0;
    for (int64_t deadline = now_ms() + 20000; t.accepted < CALLERS;) {
        event_base_loop(loop_base(t.loop), EVLOOP_ONCE);
        ck_assert_int_lt(now_ms(), deadline);
    }
    end(&t);
}

static bool on_full(void *arg)
{
    struct test *t = arg;
    t->full++;
    close(t->taken[--t->ntaken]);
    return true;
}

TEST(a_descriptor_that_the_owner_frees_is_used_at_once)
{
    struct test t = {0};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){LIMIT, LIMIT}), 0);
    begin(&t);
    listener_on_full(t.listener, on_full);
    take_all_descriptors(&t);
    for (int i = 0; i < TURNS; i++)
        event_base_loop(loop_base(t.loop), EVLOOP_ONCE | EVLOOP_NONBLOCK);
    ck_assert_int_eq(t.accepted, CALLERS);
    ck_assert_int_eq(t.full, 1);
    ck_assert_int_eq(t.warnings, 0);
    give_back_descriptors(&t);
    end(&t);
}

/* accept4() fails then, too; the owner would give up a connection for nothing. */
TEST(a_full_table_is_no_matter_while_none_waits)
{
    struct test t = {.keeps = true};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &(struct rlimit){LIMIT, LIMIT}), 0);
    begin(&t);
    listener_on_full(t.listener, on_full);
    take_all_descriptors(&t);
    for (int i = 0; i < CALLERS; i++)
        close(t.taken[--t.ntaken]);
    for (int i = 0; i < TURNS; i++)
        event_base_loop(loop_base(t.loop), EVLOOP_ONCE | EVLOOP_NONBLOCK);
    ck_assert_int_eq(t.accepted, CALLERS);
    ck_assert_int_eq(open("/dev/null", O_RDONLY | O_CLOEXEC), -1);
    ck_assert_int_eq(t.full, 0);
    give_back_descriptors(&t);
    for (int i = 0; i < CALLERS; i++)
        close(t.kept[i]);
    end(&t);
}
