/* Keys, values, numbers, queues and scopes, without a protocol. */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "rendezvous/store/entry.h"
#include "rendezvous/store/store.h"

#include <stdio.h>
#include <stdlib.h>

static struct store *st;
static struct space *sp;
static struct ddp_err err;

static void setup(void)
{
    st = store_create(0);
    sp = store_open(st, 0);
}

static void teardown(void)
{
    space_close(sp);
    store_destroy(st);
}

static struct bytes b(const char *text)
{
    return (struct bytes){text, strlen(text)};
}

static void put(const char *key, const char *value)
{
    ck_ok(space_set(sp, b(key), b(value), &err), err);
}

static void expect(const char *key, const char *value)
{
    struct view v;
    bool there = space_get(sp, b(key), &v);
    ck_assert_msg(there == (value != NULL), "'%s' is %sthere", key, there ? "" : "not ");
    if (there)
        ck_assert_msg(bytes_equal(v.bytes, b(value)), "'%s' holds '%.*s', not '%s'", key,
                      (int)v.bytes.size, (const char *)v.bytes.data, value);
}

FIXTURE(setup, teardown)

/* Lengths around the place where a value moves out of its entry. */
TEST(values_of_every_length_come_back)
{
    char text[101] = "";
    memset(text, 'v', 100);
    for (size_t was = 0; was <= 100; was += 20) {
        for (size_t n = 0; n <= 100; n++) {
            struct bytes old = {text, was}, now = {text, n};
            ck_ok(space_set(sp, b("k"), old, &err), err);
            ck_ok(space_set(sp, b("k"), now, &err), err);
            struct view v;
            ck_assert(space_get(sp, b("k"), &v));
            ck_assert(bytes_equal(v.bytes, now));
        }
    }
}

TEST(appending_grows_a_value_across_the_border)
{
    char want[301] = "";
    for (int i = 0; i < 100; i++) {
        ck_ok(space_append(sp, b("k"), b("abc"), &err), err);
        memcpy(want + 3 * i, "abc", 3);
        expect("k", want);
    }
}

/* A reader that is slower than the writers keeps what it was given. */
TEST(a_view_that_is_held_never_changes)
{
    char text[101] = "";
    memset(text, 'a', 100);
    put("k", text);
    struct view v;
    ck_assert(space_get(sp, b("k"), &v));
    blob_ref(v.blob);
    for (int i = 0; i < 10; i++)
        ck_ok(space_append(sp, b("k"), b("more"), &err), err);
    put("k", "other");
    ck_assert(space_delete(sp, b("k")));
    ck_assert(bytes_equal(v.bytes, b(text)));
    blob_unref(v.blob);
}

static const struct {
    const char *value; /* NULL: missing */
    long long delta, sum;
    const char *stored; /* NULL: refused */
} adds[] = {
    {NULL, 5, 5, "5"},
    {NULL, -5, -5, "-5"},
    {NULL, 0, 0, "0"},
    {"12abc", 1, 13, "13"},
    {" 12", 1, 13, "13"},
    {"+12", 1, 13, "13"},
    {"0x10", 1, 1, "1"},
    {"1.9", 1, 2, "2"},
    {"-5 ", 1, -4, "-4"},
    {"9223372036854775807", 1, INT64_MIN, "-9223372036854775808"},
    {"-9223372036854775808", -1, INT64_MAX, "9223372036854775807"},
    {"9223372036854775808", 1, 0, NULL},
    {"abc", 1, 0, NULL},
    {"", 1, 0, NULL},
    {"-", 1, 0, NULL},
};

LOOP_TEST(add_reads_numbers_as_the_reference_does, ARRAY_LEN(adds))
{
    if (adds[_i].value)
        put("n", adds[_i].value);
    int64_t sum = 0;
    int rc = space_add(sp, b("n"), adds[_i].delta, &sum, &err);
    ck_assert_int_eq(rc, adds[_i].stored ? 0 : -1);
    if (rc == 0) {
        ck_assert_int_eq(sum, adds[_i].sum);
        expect("n", adds[_i].stored);
    } else {
        expect("n", adds[_i].value);
        ck_assert_ptr_nonnull(strstr(err.text, "cannot add to key 'n'"));
    }
}

static const struct {
    const char *value, *expected, *desired, *answer, *after;
} swaps[] = {
    {NULL, "", "new", "new", "new"},
    {NULL, "old", "new", "old", NULL}, /* the known lie */
    {"old", "old", "new", "new", "new"},
    {"other", "old", "new", "other", "other"},
    {"", "", "new", "new", "new"},
    {"other", "", "new", "other", "other"},
};

LOOP_TEST(compare_set_answers_as_the_reference_does, ARRAY_LEN(swaps))
{
    if (swaps[_i].value)
        put("k", swaps[_i].value);
    struct view now;
    ck_ok(space_compare_set(sp, b("k"), b(swaps[_i].expected), b(swaps[_i].desired), &now,
                            &err),
          err);
    ck_assert(bytes_equal(now.bytes, b(swaps[_i].answer)));
    expect("k", swaps[_i].after);
}

TEST(deleting_reports_whether_there_was_a_value)
{
    put("k", "v");
    ck_assert_uint_eq(space_count(sp), 1);
    ck_assert(space_delete(sp, b("k")));
    ck_assert(!space_delete(sp, b("k")));
    expect("k", NULL);
    ck_assert_uint_eq(space_count(sp), 0);
}

/* Many keys, added and removed in turns: what is there is what should be there. */
TEST(the_table_keeps_every_key_through_growth_and_removal)
{
    enum { N = 5000 };
    static bool there[N];
    char key[16];
    unsigned x = 1;
    for (int step = 0; step < 40000; step++) {
        x = x * 1103515245 + 12345;
        unsigned k = (x >> 8) % N;
        snprintf(key, sizeof key, "k%u", k);
        if (x >> 31) {
            put(key, key);
            there[k] = true;
        } else {
            ck_assert(space_delete(sp, b(key)) == there[k]);
            there[k] = false;
        }
    }
    size_t n = 0;
    for (unsigned k = 0; k < N; k++) {
        snprintf(key, sizeof key, "k%u", k);
        expect(key, there[k] ? key : NULL);
        n += there[k];
    }
    ck_assert_uint_eq(space_count(sp), n);
}

TEST(keys_may_hold_any_byte)
{
    struct bytes one = {"a\0b", 3}, two = {"a\0c", 3}, none = {"", 0};
    ck_ok(space_set(sp, one, b("1"), &err), err);
    ck_ok(space_set(sp, two, b("2"), &err), err);
    ck_ok(space_set(sp, none, b("0"), &err), err);
    struct view v;
    ck_assert(space_get(sp, one, &v) && bytes_equal(v.bytes, b("1")));
    ck_assert(space_get(sp, none, &v) && bytes_equal(v.bytes, b("0")));
    ck_assert(!space_get(sp, b("a"), &v));
}

TEST(queues_are_first_in_first_out_and_apart_from_values)
{
    struct blob *head;
    ck_assert_uint_eq(space_queue_pop(sp, b("q"), &head), 0);
    ck_ok(space_queue_push(sp, b("q"), b("one"), &err), err);
    ck_ok(space_queue_push(sp, b("q"), b("two"), &err), err);
    ck_assert(space_present(sp, b("q")));
    expect("q", NULL);
    ck_assert(!space_delete(sp, b("q")));
    ck_assert_uint_eq(space_count(sp), 0);
    put("q", "value");
    ck_assert_uint_eq(space_queue_len(sp, b("q")), 2);
    ck_assert_uint_eq(space_queue_pop(sp, b("q"), &head), 2);
    ck_assert(bytes_equal((struct bytes){head->data, head->size}, b("one")));
    blob_unref(head);
    ck_assert(space_delete(sp, b("q")));
    ck_assert(space_present(sp, b("q")));
    ck_assert_uint_eq(space_queue_pop(sp, b("q"), &head), 1);
    blob_unref(head);
    ck_assert(!space_present(sp, b("q")));
}

TEST(scopes_do_not_see_each_other)
{
    struct space *other = store_open(st, 1);
    put("k", "mine");
    struct view v;
    ck_assert(!space_get(other, b("k"), &v));
    ck_ok(space_set(other, b("k"), b("theirs"), &err), err);
    expect("k", "mine");
    ck_assert_uint_eq(store_keys(st), 2);
    space_close(other);
    other = store_open(st, 1);
    ck_assert(space_get(other, b("k"), &v)); /* keys outlive their users */
    space_close(other);
}

TEST(a_dropped_scope_starts_anew)
{
    put("k", "old");
    store_drop(st, 0);
    ck_assert_uint_eq(store_keys(st), 0);
    expect("k", NULL);
    put("k", "stray"); /* a client of the dead attempt that has not noticed yet */
    struct space *fresh = store_open(st, 0);
    struct view v;
    ck_assert(!space_get(fresh, b("k"), &v));
    space_close(fresh);
    store_drop(st, 7); /* one that never was */
}

TEST(a_full_store_refuses_and_changes_nothing)
{
    struct store *small = store_create(1000);
    struct space *s = store_open(small, 0);
    char text[601] = "";
    memset(text, 'v', 600);
    ck_ok(space_set(s, b("k"), b(text), &err), err);
    ck_assert_int_eq(space_set(s, b("l"), b(text), &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "the store is full: it may hold 1000 bytes"));
    ck_assert_int_eq(space_append(s, b("k"), b(text), &err), -1);
    ck_assert_int_eq(space_queue_push(s, b("q"), b(text), &err), -1);
    ck_ok(space_set(s, b("k"), b("short"), &err), err); /* shrinking is fine */
    ck_ok(space_set(s, b("l"), b(text), &err), err);
    ck_assert_uint_eq(space_count(s), 2);
    ck_assert(!space_present(s, b("q")));
    space_close(s);
    store_drop(small, 0);
    ck_assert_uint_eq(store_bytes(small), 0);
    store_destroy(small);
}

/* What each kind of entry costs besides the values: the key, for as long as it exists. */
TEST(keys_of_queues_watches_and_waits_count)
{
    struct store *small = store_create(1000);
    struct space *s = store_open(small, 0);
    struct watch watch = {.owner = &watch}, again = {.owner = &watch},
                 other = {.owner = &other};
    struct waiter waiter = {0};
    static uint8_t list[8 + 300] = {300 & 0xff, 300 >> 8};
    char longer[601] = "";
    bool ready;
    memset(longer, 'k', 600);
    ck_ok(space_queue_push(s, b(longer), b(""), &err), err);
    ck_assert_uint_ge(store_bytes(small), 600);
    ck_assert_int_eq(space_queue_push(s, b("another"), b(longer), &err), -1);
    struct blob *popped;
    ck_assert_uint_eq(space_queue_pop(s, b(longer), &popped), 1);
    blob_unref(popped);
    ck_assert_uint_eq(store_bytes(small), 0);
    ck_assert_int_eq(space_watch(s, b(longer), &watch, &err), 0);
    ck_assert_uint_ge(store_bytes(small), 600);
    ck_assert_int_eq(space_watch(s, b(longer), &again, &err), 1);
    size_t one = store_bytes(small);
    ck_assert_int_eq(space_watch(s, b(longer), &other, &err), 0);
    ck_assert_uint_gt(store_bytes(small), one);
    ck_assert_int_eq(
        waiter_start(s, &waiter, (struct packed){list, sizeof list, 1}, &ready, &err),
        -1);
    space_unwatch(&watch);
    space_unwatch(&other);
    ck_assert_uint_eq(store_bytes(small), 0);
    ck_ok(waiter_start(s, &waiter, (struct packed){list, sizeof list, 1}, &ready, &err),
          err);
    ck_assert_uint_ge(store_bytes(small), 2 * 300); /* in the list, and as a key */
    waiter_cancel(&waiter);
    ck_assert_uint_eq(store_bytes(small), 0);
    ck_assert_int_eq(space_watch(s, b("k"), &watch, &err), 0);
    space_close(s);
    store_drop(small, 0);
    ck_assert_uint_eq(store_bytes(small), 0);
    store_destroy(small);
}

TEST(what_is_shown_is_printable_and_short)
{
    char text[128], longer[100];
    ck_assert_str_eq(bytes_show((struct bytes){"a\0\xff'\n", 5}, text, sizeof text),
                     "a\\x00\\xff'\\x0a");
    memset(longer, 'k', sizeof longer);
    bytes_show((struct bytes){longer, sizeof longer}, text, sizeof text);
    ck_assert_uint_eq(strlen(text), 63);
    ck_assert_str_eq(text + 60, "...");
}
