/* The client library with a real server: ours in a process of its own, or the one that
 * $DDPRUN_TEST_STORE (host:port) names, such as PyTorch's. Several clients are threads,
 * each with its own connection. */
#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/sock.h"
#include "include/ddprun/store.h"
#include "rendezvous/server/server.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONG_MS  30000
#define SHORT_MS 80
#define CLIENTS  16

static struct ddp_err err;
static char host[64] = "127.0.0.1";
static int port;
static pid_t server_pid;
static struct ddp_store *s; /* the test's own client */
static char test_name[32];  /* makes keys that no other test has used */

static void serve(int listener)
{
    struct ddp_err e;
    struct server_options options = {.listen_fd = listener};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct loop *loop = loop_create(&e);
    if (loop && server_create(loop, &options, &e))
        loop_run(loop);
    _exit(1);
}

static void start_server(void)
{
    const char *other = getenv("DDPRUN_TEST_STORE");
    if (other) {
        ck_assert_int_eq(sscanf(other, "%63[^:]:%d", host, &port), 2);
    } else {
        int listener = sock_listen(host, 0, &port, &err);
        ck_assert_msg(listener >= 0, "%s", err.text);
        server_pid = fork();
        if (server_pid == 0)
            serve(listener);
        close(listener);
    }
    snprintf(test_name, sizeof test_name, "t%d", (int)getpid());
    s = ddp_store_connect(host, port, LONG_MS, &err);
    ck_assert_msg(s != NULL, "%s", err.text);
}

static void stop_server(void)
{
    ddp_store_close(s);
    if (server_pid > 0) {
        kill(server_pid, SIGKILL);
        waitpid(server_pid, NULL, 0);
    }
}

static char *key(const char *name)
{
    return xasprintf("%s/%s", test_name, name);
}

/* -- one client per thread ----------------------------------------------------------- */

struct part {
    int rank;
    void (*act)(struct part *p, struct ddp_store *own);
    bool good;
    struct ddp_err err;
    pthread_t thread;
};

static void *play(void *arg)
{
    struct part *p = arg;
    struct ddp_store *own = ddp_store_connect(host, port, LONG_MS, &p->err);
    if (own)
        p->act(p, own);
    ddp_store_close(own);
    return NULL;
}

static void all_play(void (*act)(struct part *p, struct ddp_store *own))
{
    struct part parts[CLIENTS];
    for (int i = 0; i < CLIENTS; i++) {
        parts[i] = (struct part){.rank = i, .act = act, .err = {"something is wrong"}};
        pthread_create(&parts[i].thread, NULL, play, &parts[i]);
    }
    for (int i = 0; i < CLIENTS; i++)
        pthread_join(parts[i].thread, NULL);
    for (int i = 0; i < CLIENTS; i++)
        ck_assert_msg(parts[i].good, "rank %d: %s", i, parts[i].err.text);
}

static bool value_is(struct ddp_value *v, const void *data, size_t size)
{
    bool same = v->size == size && memcmp(v->data, data, size) == 0;
    ddp_values_free(v, 1);
    return same;
}

static void act_fence(struct part *p, struct ddp_store *own)
{
    struct ddp_value v[CLIENTS];
    char mine[64];
    p->good = true;
    for (int round = 0; round < 3 && p->good; round++) {
        char name[64];
        snprintf(name, sizeof name, "%s/fence%d", test_name, round);
        int n = snprintf(mine, sizeof mine, "%d of round %d", p->rank, round);
        p->good = ddp_store_fence(own, name, p->rank, CLIENTS, mine, (size_t)n, v,
                                  &p->err) == 0;
        for (int r = 0; p->good && r < CLIENTS; r++) {
            n = snprintf(mine, sizeof mine, "%d of round %d", r, round);
            p->good = value_is(&v[r], mine, (size_t)n);
        }
    }
}

FIXTURE(start_server, stop_server)

TEST(all_clients_leave_a_fence_with_all_values)
{
    all_play(act_fence);
}

static void act_barrier(struct part *p, struct ddp_store *own)
{
    char *come = key("come"), *gate = key("gate");
    int64_t n;
    p->good = ddp_store_add(own, come, 1, NULL, &p->err) == 0 &&
              ddp_store_barrier(own, gate, CLIENTS, &p->err) == 0 &&
              ddp_store_add(own, come, 0, &n, &p->err) == 0 && n == CLIENTS;
    free(come);
    free(gate);
}

TEST(no_client_passes_a_barrier_early)
{
    all_play(act_barrier);
}

static void act_queue(struct part *p, struct ddp_store *own)
{
    char *q = key("queue"), *sum = key("sum");
    struct ddp_value v;
    if (p->rank % 2) {
        char number[16];
        int n = snprintf(number, sizeof number, "%d", p->rank);
        p->good = ddp_store_queue_push(own, q, number, (size_t)n, &p->err) == 0;
    } else {
        p->good = ddp_store_queue_pop(own, q, &v, &p->err) == 0 &&
                  ddp_store_add(own, sum, atoi(v.data), NULL, &p->err) == 0;
        if (p->good)
            ddp_values_free(&v, 1);
    }
    free(q);
    free(sum);
}

/* PyTorch's older server has none. */
static bool has_queues(void)
{
    const char *has = getenv("DDPRUN_TEST_QUEUES");
    return !has || *has != '0';
}

TEST(each_element_of_a_queue_is_popped_once)
{
    int64_t left, total;
    if (!has_queues())
        return;
    char *q = key("queue"), *sum = key("sum");
    all_play(act_queue);
    ck_ok(ddp_store_queue_len(s, q, &left, &err), err);
    ck_assert_int_eq(left, 0);
    ck_ok(ddp_store_add(s, sum, 0, &total, &err), err);
    ck_assert_int_eq(total, CLIENTS * CLIENTS / 4); /* 1 + 3 + ... */
    free(q);
    free(sum);
}

static void act_get(struct part *p, struct ddp_store *own)
{
    char *k = key("late");
    struct ddp_value v = {0};
    if (p->rank == 0) {
        usleep(30000);
        p->good = ddp_store_set(own, k, "at last", 7, &p->err) == 0;
    } else {
        p->good = ddp_store_get(own, k, &v, &p->err) == 0 && value_is(&v, "at last", 7);
    }
    free(k);
}

TEST(a_get_waits_until_the_key_is_set)
{
    all_play(act_get);
}

/* -- one client ------------------------------------------------------------------------
 */

TEST(values_of_any_size_come_back)
{
    static const size_t sizes[] = {0, 1, 16383, 16384, 16385, 1 << 20, 8 << 20};
    char *keys[ARRAY_LEN(sizes)], *data = xcalloc(8 << 20, 1);
    struct ddp_value in[ARRAY_LEN(sizes)], out[ARRAY_LEN(sizes)];
    for (size_t i = 0; i < 8 << 20; i++)
        data[i] = (char)(i * 31 + (i >> 8));
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        keys[i] = xasprintf("%s/size%zu", test_name, i);
        in[i] = (struct ddp_value){data, sizes[i]};
    }
    const char *const *ro = (const char *const *)keys;
    ck_ok(ddp_store_multi_set(s, ro, in, ARRAY_LEN(sizes), &err), err);
    ck_ok(ddp_store_multi_get(s, ro, ARRAY_LEN(sizes), out, &err), err);
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        ck_assert(value_is(&out[i], data, sizes[i]));
        ck_ok(ddp_store_get(s, keys[i], &out[i], &err), err);
        ck_assert(value_is(&out[i], data, sizes[i]));
        free(keys[i]);
    }
    free(data);
}

TEST(numbers_texts_and_conditions_work)
{
    char *n = key("n"), *t = key("t"), *c = key("c");
    const char *both[] = {n, c};
    struct ddp_value v;
    int64_t sum;
    int yes;
    ck_ok(ddp_store_add(s, n, 5, &sum, &err), err);
    ck_ok(ddp_store_add(s, n, -7, &sum, &err), err);
    ck_assert_int_eq(sum, -2);
    ck_ok(ddp_store_append(s, t, "ab", 2, &err), err);
    ck_ok(ddp_store_append(s, t, "c", 1, &err), err);
    ck_ok(ddp_store_get(s, t, &v, &err), err);
    ck_assert(value_is(&v, "abc", 3));
    ck_ok(ddp_store_check(s, both, 2, &yes, &err), err);
    ck_assert_int_eq(yes, 0);
    ck_ok(ddp_store_compare_set(s, c, "", 0, "1", 1, &v, &err), err);
    ck_assert(value_is(&v, "1", 1));
    ck_ok(ddp_store_compare_set(s, c, "0", 1, "2", 1, &v, &err), err);
    ck_assert(value_is(&v, "1", 1));
    ck_ok(ddp_store_check(s, both, 2, &yes, &err), err);
    ck_assert_int_eq(yes, 1);
    ck_ok(ddp_store_wait(s, both, 2, &err), err);
    ck_ok(ddp_store_delete(s, c, &yes, &err), err);
    ck_assert_int_eq(yes, 1);
    ck_ok(ddp_store_delete(s, c, &yes, &err), err);
    ck_assert_int_eq(yes, 0);
    ck_ok(ddp_store_num_keys(s, &sum, &err), err);
    ck_assert_int_ge(sum, 2);
    free(n);
    free(t);
    free(c);
}

static bool wait_expires(const char *absent)
{
    const char *keys[] = {"there", absent};
    return ddp_store_set(s, "there", "", 0, &err) == 0 &&
           ddp_store_wait(s, keys, 2, &err) == -1 && strstr(err.text, "1 of 2 keys: '");
}

static bool get_expires(const char *absent)
{
    struct ddp_value v;
    return ddp_store_get(s, absent, &v, &err) == -1 && strstr(err.text, absent);
}

static bool multi_get_expires(const char *absent)
{
    struct ddp_value v[2];
    return ddp_store_multi_get(s, (const char *[]){absent, absent}, 2, v, &err) == -1 &&
           strstr(err.text, "2 of 2 keys");
}

static bool pop_expires(const char *absent)
{
    struct ddp_value v;
    return ddp_store_queue_pop(s, absent, &v, &err) == -1 && strstr(err.text, absent);
}

static bool fence_expires(const char *absent)
{
    struct ddp_value v[12];
    return ddp_store_fence(s, absent, 1, 12, "me", 2, v, &err) == -1 &&
           strstr(err.text,
                  "11 of 12 ranks have not come: 0, 2, 3, 4, 5, 6, 7, 8 and 3 more");
}

static bool barrier_expires(const char *absent)
{
    return ddp_store_barrier(s, absent, 3, &err) == -1 &&
           strstr(err.text, "1 of 3 have arrived");
}

static bool (*const expiries[])(const char *absent) = {
    wait_expires, get_expires,   multi_get_expires,
    pop_expires,  fence_expires, barrier_expires};

LOOP_TEST(after_a_timeout_the_connection_is_in_step, ARRAY_LEN(expiries))
{
    char *absent = key("absent"), *k = key("k");
    struct ddp_value v;
    int times = 2;
    if (expiries[_i] == pop_expires && !has_queues()) { /* said at once */
        times = 0;
        ck_assert_int_eq(ddp_store_queue_pop(s, absent, &v, &err), -1);
        ck_assert_msg(strstr(err.text, "asked for a queue") != NULL, "%s", err.text);
    }
    for (int again = 0; again < times; again++) {
        ddp_store_set_timeout(s, SHORT_MS);
        char *name = xasprintf("%s%d", absent, again); /* a barrier serves once */
        ck_assert_msg(expiries[_i](name), "%s", err.text);
        ck_assert_msg(strstr(err.text, "timed out after 80 ms") != NULL, "%s", err.text);
        ddp_store_set_timeout(s, LONG_MS);
        ck_ok(ddp_store_set(s, k, "still here", 10, &err), err);
        ck_ok(ddp_store_get(s, k, &v, &err), err);
        ck_assert(value_is(&v, "still here", 10));
        free(name);
    }
    free(absent);
    free(k);
}

TEST(a_list_longer_than_a_request_is_cut)
{
    enum { MANY = 140000 };
    if (server_pid <= 0)
        return; /* others take most of a minute for it */
    char **keys = xcalloc(MANY, sizeof *keys);
    struct ddp_value *v = xcalloc(MANY, sizeof *v);
    int all;
    for (int i = 0; i < MANY; i++) {
        keys[i] = xasprintf("%s/%d", test_name, i);
        v[i] = (struct ddp_value){keys[i], strlen(keys[i])};
    }
    const char *const *ro = (const char *const *)keys;
    ck_ok(ddp_store_multi_set(s, ro, v, MANY, &err), err);
    memset(v, 0, MANY * sizeof *v);
    ck_ok(ddp_store_multi_get(s, ro, MANY, v, &err), err);
    ck_ok(ddp_store_check(s, ro, MANY, &all, &err), err);
    ck_assert(all);
    ck_ok(ddp_store_delete(s, keys[MANY - 1], NULL, &err), err);
    int64_t began_ms = now_ms();
    ck_ok(ddp_store_check(s, ro, MANY, &all, &err), err);
    int64_t check_ms = now_ms() - began_ms; /* what the machine, and a sanitizer, takes */
    ck_assert(!all);
    ddp_store_set_timeout(s, SHORT_MS);
    began_ms = now_ms();
    ck_assert_int_eq(ddp_store_wait(s, ro, MANY, &err), -1);
    ck_assert_msg(strstr(err.text, "1 of 140000 keys") != NULL, "%s", err.text);
    /* not the 2 s of an answer to a cancel for each part */
    ck_assert_int_lt(now_ms() - began_ms, 1500 + 5 * check_ms);
    for (int i = 0; i < MANY; i++) {
        ck_assert(value_is(&v[i], keys[i], strlen(keys[i])));
        free(keys[i]);
    }
    free(keys);
    free(v);
}

LOOP_TEST(a_dead_or_stopped_server_is_detected, 2)
{
    struct ddp_err first, later;
    if (server_pid <= 0)
        return; /* not ours to kill */
    char *k = key("never");
    kill(server_pid, _i ? SIGKILL : SIGSTOP);
    ddp_store_set_timeout(s, SHORT_MS);
    ck_assert_int_eq(ddp_store_add(s, k, 1, NULL, &first), -1);
    ck_assert_msg(strstr(first.text, _i ? "has closed" : "did not answer in time") !=
                      NULL,
                  "%s", first.text);
    ck_assert_int_eq(ddp_store_barrier(s, k, 2, &later), -1);
    ck_assert_str_eq(first.text, later.text);
    free(k);
}
