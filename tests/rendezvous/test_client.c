/* The client library against a peer that follows a script: the exact bytes of every call
 * with a server that answers in order and with one that does not, and what happens when
 * the peer is silent, wrong or gone. */
#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/mem.h"
#include "include/ddprun/store.h"
#include "tests/rendezvous/fake_store.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LONG_MS  20000
#define SHORT_MS 60

static struct ddp_err err;

static struct ddp_store *connect_to(struct fake *f)
{
    struct ddp_store *s = ddp_store_connect("127.0.0.1", fake_port(f), LONG_MS, &err);
    ck_assert_msg(s != NULL, "%s", err.text);
    return s;
}

static bool is(struct ddp_value *v, const char *text)
{
    bool same = v->size == strlen(text) && memcmp(v->data, text, v->size + 1) == 0;
    ddp_values_free(v, 1);
    return same;
}

/* -- calls, to be used in tables; each returns true when the outcome is right -- */

static bool set(struct ddp_store *s)
{
    return ddp_store_set(s, "a", "1", 1, &err) == 0;
}

static bool append(struct ddp_store *s)
{
    return ddp_store_append(s, "ap", "x1", 2, &err) == 0;
}

static bool push(struct ddp_store *s)
{
    return ddp_store_queue_push(s, "q", "x", 1, &err) == 0;
}

static bool get(struct ddp_store *s)
{
    struct ddp_value v;
    return ddp_store_get(s, "a", &v, &err) == 0 && is(&v, "1");
}

static bool get_empty(struct ddp_store *s)
{
    struct ddp_value v;
    return ddp_store_get(s, "a", &v, &err) == 0 && is(&v, "");
}

static bool get_in_time(struct ddp_store *s)
{
    ddp_store_set_timeout(s, SHORT_MS);
    return !get(s) && strstr(err.text, "timed out after 60 ms waiting for key 'a'");
}

static bool get_late(struct ddp_store *s)
{
    ddp_store_set_timeout(s, SHORT_MS);
    return get(s);
}

static bool add_negative(struct ddp_store *s)
{
    int64_t n;
    return ddp_store_add(s, "n", -7, &n, &err) == 0 && n == -2;
}

static bool check_some(struct ddp_store *s)
{
    int all;
    return ddp_store_check(s, (const char *[]){"a", "zz"}, 2, &all, &err) == 0 && !all;
}

static bool compare_set(struct ddp_store *s)
{
    struct ddp_value v;
    return ddp_store_compare_set(s, "cs", "", 0, "v1", 2, &v, &err) == 0 && is(&v, "v1");
}

static bool num_keys(struct ddp_store *s)
{
    int64_t n;
    return ddp_store_num_keys(s, &n, &err) == 0 && n == 6;
}

static bool delete_it(struct ddp_store *s)
{
    int existed;
    return ddp_store_delete(s, "cs", &existed, &err) == 0 && existed == 1;
}

static bool multi_set(struct ddp_store *s)
{
    struct ddp_value v[] = {{(char[]){"v1"}, 2}, {(char[]){"v22"}, 3}};
    return ddp_store_multi_set(s, (const char *[]){"m1", "m2"}, v, 2, &err) == 0;
}

static bool multi_get(struct ddp_store *s)
{
    struct ddp_value v[2];
    return ddp_store_multi_get(s, (const char *[]){"m2", "e"}, 2, v, &err) == 0 &&
           is(&v[0], "v22") && is(&v[1], "");
}

static bool nothing_at_all(struct ddp_store *s)
{
    int all;
    return ddp_store_wait(s, NULL, 0, &err) == 0 &&
           ddp_store_multi_get(s, NULL, 0, NULL, &err) == 0 &&
           ddp_store_check(s, NULL, 0, &all, &err) == 0 && all;
}

static bool wait_names_missing(struct ddp_store *s)
{
    ddp_store_set_timeout(s, SHORT_MS);
    return ddp_store_wait(s, (const char *[]){"a", "b", "c"}, 3, &err) == -1 &&
           strstr(err.text, "waiting for 2 of 3 keys: 'b', 'c'");
}

static bool fence(struct ddp_store *s)
{
    struct ddp_value v[2];
    return ddp_store_fence(s, "f", 1, 2, "me", 2, v, &err) == 0 && is(&v[0], "you") &&
           is(&v[1], "me");
}

static bool fence_names_ranks(struct ddp_store *s)
{
    struct ddp_value v[2];
    ddp_store_set_timeout(s, SHORT_MS);
    return ddp_store_fence(s, "f", 1, 2, "me", 2, v, &err) == -1 &&
           strstr(err.text,
                  "fence 'f' timed out after 60 ms: 1 of 2 ranks have not come: 0");
}

static bool barrier(struct ddp_store *s)
{
    return ddp_store_barrier(s, "b", 2, &err) == 0;
}

static bool barrier_counts(struct ddp_store *s)
{
    ddp_store_set_timeout(s, SHORT_MS);
    return !barrier(s) && strstr(err.text, "barrier 'b' timed out after 60 ms: 1 of 2");
}

static bool pop(struct ddp_store *s)
{
    struct ddp_value v;
    return ddp_store_queue_pop(s, "q", &v, &err) == 0 && is(&v, "x");
}

static bool pop_late(struct ddp_store *s)
{
    ddp_store_set_timeout(s, SHORT_MS);
    return pop(s);
}

static bool queue_len(struct ddp_store *s)
{
    int64_t n;
    return ddp_store_queue_len(s, "q", &n, &err) == 0 && n == 2;
}

/* after which the connection must still be in step: an ADD as the last request */
static const struct {
    const char *name;
    bool (*call)(struct ddp_store *s);
    const char *script;
} calls[] = {
    {"set", set, "hello in order; C x0102000000000000002f61010000000000000031"},
    {"append", append, "hello in order; C .9 \"/ap\" \"x1\""},
    {"queue push", push, "hello in order; C .14 \"/q\" \"x\""},
    {"get", get, "hello in order; C .6 #1 \"/a\" .3 \"/a\"; S .0 \"1\""},
    {"get, empty", get_empty, "hello in order; C .6 #1 \"/a\" .3 \"/a\"; S .0 \"\""},
    {"get, two trips", get, "hello at once; C .6 #1 \"/a\"; S .0; C .3 \"/a\"; S \"1\""},
    {"get, timeout", get_in_time,
     "hello in order; C .6 #1 \"/a\" .3 \"/a\"; C .12; S .1 \"\""},
    {"get, timeout, two trips", get_in_time,
     "hello at once; C .6 #1 \"/a\"; C .12; S .1"},
    {"get, crossed", get_late,
     "hello in order; C .6 #1 \"/a\" .3 \"/a\"; C .12; S .0 \"1\" .1"},
    {"get, crossed, two trips", get_late,
     "hello at once; C .6 #1 \"/a\"; C .12; S .0 .1; C .3 \"/a\"; S \"1\""},
    {"add", add_negative, "hello in order; C .4 \"/n\" #-7; S #-2"},
    {"check", check_some, "hello in order; C .5 #2 \"/a\" \"/zz\"; S .1"},
    {"compare_set", compare_set, "hello in order; C .2 \"/cs\" \"\" \"v1\"; S \"v1\""},
    {"num_keys", num_keys, "hello in order; C .7; S #6"},
    {"delete", delete_it, "hello in order; C .8 \"/cs\"; S #1"},
    {"multi_set", multi_set, "hello in order; C .11 #2 \"/m1\" \"v1\" \"/m2\" \"v22\""},
    {"multi_get", multi_get,
     "hello in order; C .6 #2 \"/m2\" \"/e\" .10 #2 \"/m2\" \"/e\"; S .0 \"v22\" \"\""},
    {"multi_get, two trips", multi_get,
     "hello at once; C .6 #2 \"/m2\" \"/e\"; S .0; C .10 #2 \"/m2\" \"/e\"; "
     "S \"v22\" \"\""},
    {"empty lists", nothing_at_all, "hello in order"},
    {"wait, timeout", wait_names_missing,
     "hello in order; C .6 #3 \"/a\" \"/b\" \"/c\"; C .12; S .1; "
     "C .5 #1 \"/a\" .5 #1 \"/b\" .5 #1 \"/c\"; S .0 .1 .1"},
    {"fence", fence,
     "hello in order; C .1 \"/f/1\" \"me\" .6 #2 \"/f/0\" \"/f/1\" "
     ".10 #2 \"/f/0\" \"/f/1\"; S .0 \"you\" \"me\""},
    {"fence, two trips", fence,
     "hello at once; C .1 \"/f/1\" \"me\" .6 #2 \"/f/0\" \"/f/1\"; S .0; "
     "C .10 #2 \"/f/0\" \"/f/1\"; S \"you\" \"me\""},
    {"fence, timeout", fence_names_ranks,
     "hello in order; C .1 \"/f/1\" \"me\" .6 #2 \"/f/0\" \"/f/1\" "
     ".10 #2 \"/f/0\" \"/f/1\"; C .12; S .1 \"\" \"me\"; "
     "C .5 #1 \"/f/0\" .5 #1 \"/f/1\"; S .1 .0"},
    {"barrier", barrier, "hello in order; C .18 \"/b\" #2; S .0"},
    {"barrier, last of an older server's", barrier,
     "hello at once; C .4 \"/b/num_members\" #1; S #2; "
     "C .1 \"/b/last_member\" \"1\" .6 #1 \"/b/last_member\"; S .0"},
    {"barrier, timeout", barrier_counts,
     "hello in order; C .18 \"/b\" #2; C .12; S .1; C .3 \"/b\"; S \"1\""},
    {"barrier, timeout, older server", barrier_counts,
     "hello at once; C .4 \"/b/num_members\" #1; S #1; C .6 #1 \"/b/last_member\"; "
     "C .12; S .1; C .4 \"/b/num_members\" #0; S #1"},
    {"queue pop", pop, "hello in order; C .6 #1 \"/q\" .15 \"/q\"; S .0 #2 \"x\""},
    {"queue pop, another was quicker", pop,
     "hello in order; C .6 #1 \"/q\" .15 \"/q\"; S .0 #0; "
     "C .6 #1 \"/q\" .15 \"/q\"; S .0 #1 \"x\""},
    {"queue pop, at the last moment", pop_late,
     "hello in order; C .6 #1 \"/q\" .15 \"/q\"; C .12; S .1 #1 \"x\""},
    {"queue len", queue_len, "hello in order; C .16 \"/q\"; S #2"},
    {"queue pop, two trips", pop,
     "hello at once; C .16 \"/q\"; S #1; C .6 #1 \"/q\"; S .0; C .15 \"/q\"; S #1 \"x\""},
};

LOOP_TEST(every_call_follows_the_protocol, ARRAY_LEN(calls))
{
    char *script = xasprintf("%s; C .4 \"/n\" #-7; S #-2; silence", calls[_i].script);
    struct fake *f = fake_start(script);
    struct ddp_store *s = connect_to(f);
    bool right = calls[_i].call(s);
    ddp_store_set_timeout(s, INT64_MAX);
    bool in_step = add_negative(s);
    ddp_store_close(s);
    const char *trouble = fake_end(f);
    ck_assert_msg(!trouble, "%s: %s", calls[_i].name, trouble);
    ck_assert_msg(right, "%s: %s", calls[_i].name, err.text);
    ck_assert_msg(in_step, "%s: %s", calls[_i].name, err.text);
    free(script);
}

/* As PyTorch's before 2.8: all three say so at once. */
TEST(a_store_without_queues_is_told)
{
    static bool (*const uses[])(struct ddp_store *s) = {push, pop, queue_len};
    for (size_t i = 0; i < ARRAY_LEN(uses); i++) {
        struct fake *f = fake_start("hello at once; C .16 \"/q\"; close");
        struct ddp_store *s = connect_to(f);
        ck_assert(!uses[i](s));
        ck_assert_msg(strstr(err.text, "closed the connection when asked for a queue "
                                       "(PyTorch's stores have queues since 2.8, with libuv)"),
                      "%s", err.text);
        ddp_store_close(s);
        ck_assert_ptr_null(fake_end(f));
    }
}

static const struct {
    const char *script, *text;
} no_stores[] = {
    {"deaf", "did not answer in time"},
    {"close", "at once; its messages say why"},
    {"C x00cef7853c; S x485454502f31; silence", "is not a TCPStore"},
    {"C x00cef7853c; S .0 .0; silence", "is not a TCPStore"},
    {"C x00cef7853c; S .1; close", "does not let this process in"},
};

LOOP_TEST(a_server_that_is_no_store_is_rejected_in_time, ARRAY_LEN(no_stores))
{
    struct fake *f = fake_start(no_stores[_i].script);
    ck_assert_ptr_null(ddp_store_connect("127.0.0.1", fake_port(f), 150, &err));
    ck_assert_msg(strstr(err.text, no_stores[_i].text) != NULL, "%s", err.text);
    fake_end(f);
}

static const struct {
    const char *script, *text;
} breaks[] = {
    {"hello in order; C .6 #1 \"/a\" .3 \"/a\"; close", "has closed the connection"},
    {"hello in order; C .6 #1 \"/a\" .3 \"/a\"; S .0 #9 .1; close",
     "has closed the connection"},
    {"hello in order; C .6 #1 \"/a\" .3 \"/a\"; S .0 #-1; close",
     "has closed the connection"},
    {"hello in order; C .6 #1 \"/a\" .3 \"/a\"; S .7; silence",
     "answered a wait wrongly"},
    {"hello in order; C .6 #1 \"/a\" .3 \"/a\"; S .1; silence",
     "answered a wait wrongly"},
};

LOOP_TEST(a_broken_connection_repeats_its_error, ARRAY_LEN(breaks))
{
    struct fake *f = fake_start(breaks[_i].script);
    struct ddp_store *s = connect_to(f);
    struct ddp_value v;
    ck_assert_int_eq(ddp_store_get(s, "a", &v, &err), -1);
    ck_assert_ptr_null(v.data);
    ck_assert_msg(strstr(err.text, breaks[_i].text) != NULL, "%s", err.text);
    struct ddp_err first = err, later;
    ck_assert_int_eq(ddp_store_set(s, "a", "", 0, &later), -1);
    ck_assert_str_eq(first.text, later.text);
    ck_assert_int_eq(ddp_store_barrier(s, "a", 2, &later), -1);
    ck_assert_str_eq(first.text, later.text);
    ck_assert_int_eq(ddp_store_multi_get(s, (const char *[]){"a"}, 1, &v, &later), -1);
    ck_assert_str_eq(first.text, later.text);
    ddp_store_close(s);
    fake_end(f);
}

TEST(oversized_requests_are_rejected_by_the_client)
{
    struct fake *f = fake_start("hello in order; C .4 \"/n\" #-7; S #-2; silence");
    struct ddp_store *s = connect_to(f);
    char *key = xcalloc(8193, 1), *value = xcalloc(8388609, 1);
    struct ddp_value v;
    int64_t n;
    memset(key, 'k', 8192);
    ck_assert_int_eq(ddp_store_set(s, key, "", 0, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "has 8192 bytes, the store takes 8191"));
    ck_assert_int_eq(ddp_store_add(s, key, 1, &n, &err), -1);
    ck_assert_int_eq(ddp_store_get(s, key, &v, &err), -1);
    ck_assert_int_eq(ddp_store_set(s, "v", value, 8388609, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "value of 'v' has 8388609 bytes"));
    ck_assert_int_eq(ddp_store_barrier(s, "b", 0, &err), -1);
    ck_assert_int_eq(ddp_store_fence(s, "f", 2, 2, "", 0, &v, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "there is no rank 2 of 2"));
    ck_assert(add_negative(s)); /* and nothing of it was sent */
    ddp_store_close(s);
    const char *trouble = fake_end(f);
    ck_assert_msg(!trouble, "%s", trouble);
    free(key);
    free(value);
}

static const struct {
    const char *addr, *port, *text, *separate;
} environments[] = {
    {NULL, "29500", "MASTER_ADDR is not set"},
    {"127.0.0.1", NULL, "MASTER_PORT is not set"},
    {"127.0.0.1", "http", "MASTER_PORT='http' is not a port"},
    {"127.0.0.1", "65536", "MASTER_PORT='65536' is not a port"},
    {"127.0.0.1", "1", "refused"},
    {"127.0.0.1", "1", "port 2: ", "2@127.0.0.1:1"},
    /* a store that the rank chose itself */
    {"127.0.0.1", "1", "port 1: ", "2@127.0.0.1:3"},
    {"127.0.0.1", "1", "port 1: ", "2@127.0.0.2:1"},
};

TEST(a_port_out_of_range_is_refused_at_once)
{
    ck_assert_ptr_null(ddp_store_connect("127.0.0.1", 65536 + 1, 60000, &err));
    ck_assert_str_eq(err.text, "store: 65537 is not a port (1 to 65535)");
    ck_assert_ptr_null(ddp_store_connect("127.0.0.1", -1, 60000, &err));
    ck_assert_str_eq(err.text, "store: -1 is not a port (1 to 65535)");
}

LOOP_TEST(a_useless_environment_is_explained, ARRAY_LEN(environments))
{
    unsetenv("MASTER_ADDR");
    unsetenv("MASTER_PORT");
    unsetenv("DDPRUN_STORE_PORT");
    if (environments[_i].addr)
        setenv("MASTER_ADDR", environments[_i].addr, 1);
    if (environments[_i].port)
        setenv("MASTER_PORT", environments[_i].port, 1);
    if (environments[_i].separate)
        setenv("DDPRUN_STORE_PORT", environments[_i].separate, 1);
    ck_assert_ptr_null(ddp_store_connect(NULL, 0, 50, &err));
    ck_assert_msg(strstr(err.text, environments[_i].text) != NULL, "%s", err.text);
}
