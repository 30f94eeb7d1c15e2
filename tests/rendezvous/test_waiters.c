/* Which waiters are woken, when, and only once. */
#include "tests/support/suite.h"

#include "rendezvous/store/entry.h"
#include "rendezvous/store/store.h"

#include <stdio.h>

static struct store *st;
static struct space *sp;
static struct ddp_err err;

struct client {
    struct waiter waiter; /* first */
    int ended, dropped, turn;
};
static struct client c[8];
static int turn;

static void on_end(struct waiter *w, enum wait_end how)
{
    struct client *who = (struct client *)(void *)w;
    ck_assert(!waiter_waits(w));
    who->ended++;
    who->dropped += how == WAIT_DROPPED;
    who->turn = ++turn;
}

static void setup(void)
{
    st = store_create(0);
    sp = store_open(st, 0);
    memset(c, 0, sizeof c);
    turn = 0;
    for (int i = 0; i < 8; i++)
        c[i].waiter.end = on_end;
}

static void teardown(void)
{
    for (int i = 0; i < 8; i++)
        waiter_cancel(&c[i].waiter);
    space_close(sp);
    store_destroy(st);
}

static struct bytes b(const char *text)
{
    return (struct bytes){text, strlen(text)};
}

static void put(const char *key)
{
    ck_ok(space_set(sp, b(key), b("v"), &err), err);
}

static void push(const char *key)
{
    ck_ok(space_queue_push(sp, b(key), b("v"), &err), err);
}

static void pop(const char *key)
{
    struct blob *head;
    ck_assert_uint_gt(space_queue_pop(sp, b(key), &head), 0);
    blob_unref(head);
}

/* "a b c": keys of one letter or more, parted by blanks. True: need not wait. */
static bool waits_for(int who, const char *names)
{
    uint8_t list[1024];
    struct packed keys = {list, 0, 0};
    while (*names) {
        uint64_t n = strcspn(names, " ");
        memcpy(list + keys.size, &n, sizeof n);
        memcpy(list + keys.size + sizeof n, names, n);
        keys.size += sizeof n + n;
        keys.count++;
        names += n + (names[n] == ' ');
    }
    bool ready;
    ck_ok(waiter_start(sp, &c[who].waiter, keys, &ready, &err), err);
    ck_assert(ready != waiter_waits(&c[who].waiter));
    return ready;
}

FIXTURE(setup, teardown)

TEST(a_wait_for_what_is_there_is_over_at_once)
{
    put("a");
    push("q");
    ck_assert(waits_for(0, ""));
    ck_assert(waits_for(0, "a"));
    ck_assert(waits_for(0, "a q a"));
    ck_assert_int_eq(c[0].ended, 0);
}

TEST(a_waiter_ends_once_when_the_last_key_comes)
{
    ck_assert(!waits_for(0, "a b"));
    put("b");
    ck_assert_int_eq(c[0].ended, 0);
    put("a");
    ck_assert_int_eq(c[0].ended, 1);
    put("a");
    put("b");
    ck_assert_int_eq(c[0].ended, 1);
    ck_assert_uint_eq(store_waiters(st), 0);
}

TEST(a_key_named_twice_counts_once)
{
    ck_assert(!waits_for(0, "a a"));
    put("a");
    ck_assert_int_eq(c[0].ended, 1);
}

/* The reference releases it although "a" is gone. */
TEST(a_key_that_goes_again_is_missing_again)
{
    ck_assert(!waits_for(0, "a b"));
    put("a");
    ck_assert(space_delete(sp, b("a")));
    put("b");
    ck_assert_int_eq(c[0].ended, 0);
    put("a");
    ck_assert_int_eq(c[0].ended, 1);
}

TEST(equal_lists_are_woken_together_in_order)
{
    for (int i = 0; i < 4; i++)
        ck_assert(!waits_for(i, "a b c d e f g h i j k"));
    ck_assert(!waits_for(4, "b"));
    ck_assert_uint_eq(store_waiters(st), 5);
    for (const char *k = "kjihgfedcb"; *k; k++)
        put((char[]){*k, '\0'});
    ck_assert_int_eq(c[4].ended, 1);
    ck_assert_int_eq(c[0].ended, 0);
    put("a");
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(c[i].turn, i + 2);
}

TEST(many_different_lists_are_all_kept)
{
    static struct client many[100];
    for (int i = 0; i < 100; i++) {
        uint8_t list[18] = {1, [8] = (uint8_t)i, [9] = 1, [17] = (uint8_t)(i + 1)};
        bool ready;
        many[i].waiter.end = on_end;
        ck_ok(
            waiter_start(sp, &many[i].waiter, (struct packed){list, 18, 2}, &ready, &err),
            err);
        ck_assert(!ready);
    }
    for (int i = 0; i <= 100; i++) {
        uint8_t key = (uint8_t)i;
        ck_ok(space_set(sp, (struct bytes){&key, 1}, b("v"), &err), err);
        for (int k = 0; k < 100; k++)
            ck_assert_int_eq(many[k].ended, k < i);
    }
}

/* A push has completed the list and woken one of two; a third comes and need not wait. */
TEST(a_complete_list_gets_no_new_waiters)
{
    static const char names[] = "a b c d e f g h q";
    for (const char *k = "abcdefgh"; *k; k++)
        put((char[]){*k, '\0'});
    ck_assert(!waits_for(0, names));
    ck_assert(!waits_for(1, names));
    push("q");
    ck_assert_int_eq(c[0].ended, 1);
    ck_assert_int_eq(c[1].ended, 0);
    ck_assert(waits_for(2, names));
    push("q");
    ck_assert_int_eq(c[1].ended, 1);
}

TEST(a_cancelled_waiter_is_never_called)
{
    ck_assert(!waits_for(0, "a"));
    ck_assert(!waits_for(1, "a"));
    waiter_cancel(&c[0].waiter);
    waiter_cancel(&c[0].waiter);
    put("a");
    ck_assert_int_eq(c[0].ended, 0);
    ck_assert_int_eq(c[1].ended, 1);
}

TEST(a_full_store_takes_no_more_waiters)
{
    struct store *small = store_create(1000);
    struct space *s = store_open(small, 0);
    static uint8_t list[10 * 9]; /* ten keys of one byte */
    for (uint8_t i = 0; i < 10; i++) {
        list[9 * i] = 1;
        list[9 * i + 8] = i;
    }
    bool ready;
    struct packed ten = {list, sizeof list, 10}, one = {list, 9, 1};
    ck_assert_int_eq(waiter_start(s, &c[0].waiter, ten, &ready, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "the store is full"));
    ck_ok(waiter_start(s, &c[0].waiter, one, &ready, &err), err);
    waiter_cancel(&c[0].waiter);
    ck_assert_uint_eq(store_bytes(small), 0);
    space_close(s);
    store_destroy(small);
}

TEST(waiting_leaves_nothing_behind)
{
    ck_assert(!waits_for(0, "a b"));
    ck_assert_uint_eq(space_count(sp), 0);
    waiter_cancel(&c[0].waiter);
    ck_assert(!space_present(sp, b("a")));
    ck_assert(!waits_for(0, "b a"));
    waiter_cancel(&c[0].waiter);
    ck_assert_uint_eq(store_bytes(st), 0);
}

static void by_add(void)
{
    int64_t sum;
    ck_ok(space_add(sp, b("k"), 1, &sum, &err), err);
}
static void by_append(void)
{
    ck_ok(space_append(sp, b("k"), b("x"), &err), err);
}
static void by_compare_set(void)
{
    struct view now;
    ck_ok(space_compare_set(sp, b("k"), b(""), b("x"), &now, &err), err);
}
static void by_push(void)
{
    push("k");
}
static void by_set(void)
{
    put("k");
}
static void by_barrier(void)
{
    bool passed;
    ck_ok(space_barrier(sp, b("k"), 2, &c[7].waiter, &passed, &err), err);
}
static void (*const ways[])(void) = {by_add,  by_append, by_compare_set,
                                     by_push, by_set,    by_barrier};

LOOP_TEST(whatever_makes_a_key_present_wakes, (sizeof ways / sizeof *ways))
{
    ck_assert(!waits_for(0, "k"));
    ways[_i]();
    ck_assert_int_eq(c[0].ended, 1);
}

TEST(a_compare_set_that_stores_nothing_wakes_no_waiter)
{
    struct view now;
    ck_assert(!waits_for(0, "k"));
    ck_ok(space_compare_set(sp, b("k"), b("other"), b("x"), &now, &err), err);
    ck_assert_int_eq(c[0].ended, 0);
}

TEST(each_push_wakes_one_the_longest_waiting)
{
    ck_assert(!waits_for(0, "q"));
    ck_assert(!waits_for(1, "q q")); /* another list, the same key */
    ck_assert(!waits_for(2, "q"));
    push("q");
    ck_assert_int_eq(c[0].ended, 1);
    ck_assert_int_eq(c[1].ended + c[2].ended, 0);
    push("q");
    ck_assert_int_eq(c[1].ended, 1);
    ck_assert_int_eq(c[2].ended, 0);
    push("q");
    ck_assert_int_eq(c[2].ended, 1);
}

TEST(a_queue_that_is_emptied_is_missing_again)
{
    ck_assert(!waits_for(0, "q k"));
    push("q");
    pop("q");
    put("k");
    ck_assert_int_eq(c[0].ended, 0);
    push("q");
    ck_assert_int_eq(c[0].ended, 1);
}

/* The reference never releases this one. */
TEST(a_filled_queue_and_a_missing_key_are_waited_for)
{
    push("q");
    ck_assert(!waits_for(0, "q k"));
    put("k");
    ck_assert_int_eq(c[0].ended, 1);
}

static bool arrive(int who, int64_t size)
{
    bool passed;
    ck_ok(space_barrier(sp, b("bar"), size, &c[who].waiter, &passed, &err), err);
    return passed;
}

TEST(a_barrier_opens_when_all_have_come)
{
    ck_assert(!arrive(0, 3));
    ck_assert(!arrive(1, 3));
    ck_assert_int_eq(c[0].ended, 0);
    ck_assert(arrive(2, 3));
    ck_assert_int_eq(c[0].ended, 1);
    ck_assert_int_eq(c[1].ended, 1);
    ck_assert(arrive(0, 3)); /* a key serves once */
}

TEST(barriers_of_no_size_pass)
{
    ck_assert(arrive(0, 0));
    ck_assert(arrive(1, -1));
}

TEST(a_client_that_left_a_barrier_stays_counted)
{
    ck_assert(!arrive(0, 2));
    waiter_cancel(&c[0].waiter);
    ck_assert(arrive(1, 2));
    ck_assert_int_eq(c[0].ended, 0);
}

TEST(a_smaller_size_or_a_set_opens_the_barrier_for_all)
{
    ck_assert(!arrive(0, 4));
    ck_assert(!arrive(1, 4));
    ck_assert(arrive(2, 3));
    ck_assert_int_eq(c[0].ended + c[1].ended, 2);
    ck_assert(!arrive(3, 9));
    put("bar");
    ck_assert_int_eq(c[3].ended, 1);
}

TEST(a_barrier_on_a_word_is_refused)
{
    bool passed;
    ck_ok(space_set(sp, b("bar"), b("abc"), &err), err);
    ck_assert_int_eq(space_barrier(sp, b("bar"), 2, &c[0].waiter, &passed, &err), -1);
}

TEST(dropping_a_scope_ends_its_waiters)
{
    ck_assert(!waits_for(0, "a b"));
    ck_assert(!waits_for(1, "a"));
    ck_assert(!arrive(2, 2));
    store_drop(st, 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(c[i].ended, 1);
        ck_assert_int_eq(c[i].dropped, 1);
    }
    ck_assert_uint_eq(store_waiters(st), 0);
    ck_assert(!waits_for(0, "a"));
}

/* Any order of sets, deletes, waits and cancels: a waiter is released at the first moment
 * all its keys are there, never earlier, never twice. The model is a bit mask. */
LOOP_TEST(a_random_walk_agrees_with_the_model, 8)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    unsigned have = 0, want[8] = {0}, x = (unsigned)_i + 1;
    bool waiting[8] = {false};
    for (int step = 0; step < 4000; step++) {
        x = x * 1103515245 + 12345;
        unsigned k = (x >> 12) % 4, who = (x >> 16) % 8;
        int before = c[who].ended;
        switch ((x >> 24) % 4) {
        case 0:
            put(names[k]);
            have |= 1u << k;
            break;
        case 1:
            ck_assert(space_delete(sp, b(names[k])) == (have >> k & 1));
            have &= ~(1u << k);
            break;
        case 2:
            waiter_cancel(&c[who].waiter);
            waiting[who] = false;
            ck_assert_int_eq(c[who].ended, before);
            break;
        default:
            if (!waiting[who]) {
                char list[16] = "";
                want[who] = (x >> 20) % 16;
                for (unsigned i = 0; i < 4; i++) {
                    if (want[who] >> i & 1)
                        strcat(strcat(list, *list ? " " : ""), names[i]);
                }
                waiting[who] = !waits_for((int)who, list);
                ck_assert(waiting[who] == ((have & want[who]) != want[who]));
            }
        }
        for (int i = 0; i < 8; i++) {
            bool due = waiting[i] && (have & want[i]) == want[i];
            ck_assert_int_eq(c[i].ended, due);
            waiting[i] = waiting[i] && !due;
            c[i].ended = 0;
        }
    }
}
