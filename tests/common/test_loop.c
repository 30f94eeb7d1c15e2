#include "tests/support/suite.h"

#include "common/loop.h"

#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

static struct loop *l;
static int ran;

static void setup(void)
{
    l = loop_create(NULL);
    ran = 0;
}

static void teardown(void)
{
    loop_destroy(l);
}

static void stop(void *arg)
{
    loop_stop(l, 7);
}

static void again(void *arg)
{
    ran++;
    loop_post(l, stop, NULL);
}

static void count(void *arg)
{
    ran += 100;
}

FIXTURE(setup, teardown)

TEST(posted_calls_run_and_may_post)
{
    loop_post(l, again, NULL);
    ck_assert_int_eq(loop_run(l), 7);
    ck_assert_int_eq(ran, 1);
}

static char order[8], one[] = "a", two[] = "c", last[] = "z";

static void note(void *arg)
{
    strcat(order, arg);
}

static void note_and_post(void *arg)
{
    note(arg);
    if (strlen(order) == 3) /* by the last one: what it posts runs now, too */
        loop_post(l, stop, NULL);
    else
        loop_post(l, note, two);
}

TEST(last_calls_run_after_those_that_are_posted_later)
{
    order[0] = '\0';
    loop_post_last(l, note_and_post, last);
    loop_post(l, note_and_post, one);
    ck_assert_int_eq(loop_run(l), 7);
    ck_assert_str_eq(order, "acz");
}

TEST(withdrawn_calls_do_not_run)
{
    int who;
    loop_post(l, count, &who);
    loop_post(l, again, NULL);
    loop_unpost(l, &who);
    loop_run(l);
    ck_assert_int_eq(ran, 1);
}

/* The reader of a pipe whose only writer is closed "later" finds the end of the file. */
static void on_end(evutil_socket_t fd, short what, void *arg)
{
    char c;
    ck_assert_int_eq(read(fd, &c, 1), 0);
    loop_stop(l, 3);
}

static int pipe_closed_later(int ends[2])
{
    ck_assert_int_eq(pipe(ends), 0);
    int writer = ends[1];
    struct event *e = loop_event(l, writer, EV_WRITE, on_end, NULL);
    loop_close_fd_later(l, &e, &ends[1]);
    ck_assert_ptr_null(e);
    ck_assert_int_eq(ends[1], -1);
    ck_assert_int_ge(fcntl(writer, F_GETFD), 0);
    loop_close_fd_later(l, &e, &ends[1]); /* none: nothing */
    return writer;
}

TEST(descriptors_are_closed_later)
{
    int ends[2];
    pipe_closed_later(ends);
    struct event *end = loop_watch(l, ends[0], EV_READ, on_end, NULL);
    ck_assert_int_eq(loop_run(l), 3);
    loop_close_fd(&end, &ends[0]);
}

TEST(the_end_of_the_loop_closes_descriptors)
{
    char c;
    int ends[2];
    pipe_closed_later(ends);
    loop_destroy(l);
    l = NULL;
    ck_assert_int_eq(read(ends[0], &c, 1), 0);
    close(ends[0]);
}

static void on_later(evutil_socket_t fd, short what, void *arg)
{
    loop_stop(l, 7);
}

static struct event *given_up;

static void give_up(void *arg)
{
    loop_close_fd_later(l, &given_up, arg);
    ck_assert_ptr_null(given_up);
}

/* Although its descriptor is open for some ms, and at the end of its file. */
TEST(an_event_that_a_posted_call_gives_up_has_no_more_calls)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    close(ends[1]);
    given_up = loop_watch(l, ends[0], EV_READ | EV_PERSIST, on_end, NULL);
    struct event *stop_later = loop_timer(l, on_later, NULL);
    loop_arm(stop_later, 2);
    loop_post(l, give_up, &ends[0]);
    ck_assert_int_eq(loop_run(l), 7);
    loop_free(stop_later);
}

static struct event *timer, *watched;
static int ends[2];
static bool readable;

/* Makes the pipe readable, and runs again. */
static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    ck_assert_int_eq(write(ends[1], "x", 1), 1);
    if (++ran < 3)
        loop_arm(timer, 0);
}

static void on_readable(evutil_socket_t fd, short what, void *arg)
{
    ck_assert_int_eq(fd, ends[0]);
    ck_assert_ptr_eq(arg, &ends);
    readable = true;
}

TEST(timers_run_once_for_each_time_they_are_armed)
{
    ck_assert_int_eq(pipe(ends), 0);
    timer = loop_timer(l, on_timer, NULL);
    watched = loop_watch(l, ends[0], EV_READ | EV_PERSIST, on_readable, &ends);
    struct event *idle = loop_timer(l, on_timer, NULL); /* never armed */
    loop_arm(timer, 3600000);
    loop_arm(timer, 1);
    struct event *later = loop_timer(l, on_later, NULL);
    loop_arm(later, 100);
    ck_assert_int_eq(loop_run(l), 7);
    ck_assert_int_eq(ran, 3);
    ck_assert(readable);
    loop_free(later);
    loop_free(idle);
    loop_free(timer);
    loop_close_fd(&watched, &ends[0]);
    close(ends[1]);
    loop_free(NULL);
    ck_assert_ptr_null(watched);
    ck_assert_int_eq(ends[0], -1);
}
