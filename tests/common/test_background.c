/* Calls in a thread: their order, what is dropped, and one that does not return. */
#include "tests/support/suite.h"

#include "common/background.h"
#include "common/duration.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

enum { CALLS = 100 };

struct call {
    struct background_call call;
    struct loop *loop;
    int number, pipe; /* it reads from the pipe, unless that is -1 */
};

static int ended[CALLS], nended, nran;
static atomic_int begun;

static void run(struct background_call *c)
{
    char byte;
    atomic_fetch_add(&begun, 1);
    if (((struct call *)c)->pipe >= 0)
        ck_assert_int_eq((int)read(((struct call *)c)->pipe, &byte, 1), 1);
}

static void done(struct background_call *c, bool ran)
{
    struct call *own = (struct call *)c;
    ended[nended++] = own->number;
    nran += ran;
    if (own->number == CALLS - 1)
        loop_stop(own->loop, 7);
    free(own);
}

static void give(struct background *b, struct loop *l, int number)
{
    struct call *c = calloc(1, sizeof *c);
    *c = (struct call){{run, done, NULL}, l, number, -1};
    background_run(b, &c->call);
}

TEST(calls_end_in_order)
{
    struct ddp_err err;
    struct loop *l = loop_create(&err);
    struct background *b = background_create(l, &err);
    ck_assert_msg(b != NULL, "%s", err.text);
    for (int i = 0; i < CALLS; i++)
        give(b, l, i);
    ck_assert_int_eq(loop_run(l), 7);
    ck_assert_int_eq(nended, CALLS);
    ck_assert_int_eq(nran, CALLS);
    for (int i = 0; i < CALLS; i++)
        ck_assert_int_eq(ended[i], i);
    ck_assert_int_eq((int)background_busy_ms(b), 0);
    ck_assert(background_end(b));
    loop_destroy(l);
}

static void run_shortly(struct background_call *c)
{
    atomic_fetch_add(&begun, 1);
    usleep(1000);
}

TEST(a_call_that_returns_soon_is_reported_at_the_end)
{
    struct ddp_err err;
    struct loop *l = loop_create(&err);
    struct background *b = background_create(l, &err);
    struct call *only = calloc(1, sizeof *only);
    *only = (struct call){{run_shortly, done, NULL}, l, 0, -1};
    background_run(b, &only->call);
    while (atomic_load(&begun) == 0)
        usleep(10);
    ck_assert(background_end(b));
    ck_assert_int_eq(nran, 1);
    loop_destroy(l);
}

/* The first does not return before it is told to: those behind it are dropped, and it is
 * left to the thread. */
TEST(a_call_that_does_not_return_is_left)
{
    struct ddp_err err;
    int p[2];
    struct loop *l = loop_create(&err);
    struct background *b = background_create(l, &err);
    ck_assert_int_eq(pipe(p), 0);
    static struct call first;
    first = (struct call){{run, done, NULL}, l, 0, p[0]};
    background_run(b, &first.call);
    while (atomic_load(&begun) == 0 || background_busy_ms(b) < 2)
        usleep(1000);
    give(b, l, 1);
    give(b, l, 2);
    background_drop(b);
    ck_assert_int_eq(nended, 2);
    ck_assert_int_eq(nran, 0);
    ck_assert_int_eq(ended[1], 2);
    ck_assert(!background_end(b));
    ck_assert_int_eq(nended, 2);
    ck_assert_int_eq((int)write(p[1], "x", 1), 1);
    loop_destroy(l);
}
