/* Horovod's requests, as its Gloo clients send them, and requests that no client should
 * send. */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "rendezvous/protocol/http.h"
#include "tests/rendezvous/world.h"

#include <stdio.h>
#include <stdlib.h>

#define OK      "HTTP/1.1 200 OK\r\nContent-Length: "
#define MISSING "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"
/* recorded from Horovod 0.28.1 */
#define GET(path) "GET " path " HTTP/1.1\r\nHost: 10.77.0.1\r\nContent-Length: 0\r\n\r\n"
#define DELETE(path) \
    "DELETE " path " HTTP/1.1\r\nHost: 10.77.0.1\r\nContent-Length: 0\r\n\r\n"
#define PUT(path, size, body) \
    "PUT " path " HTTP/1.1\r\nHost: 10.77.0.1\r\nContent-Length: " size "\r\n\r\n" body

static struct world w;

static void setup(void)
{
    world_init(&w, DIALECT_AUTO);
}

static void teardown(void)
{
    world_finish(&w);
}

static void say(int who, const char *text)
{
    world_send(&w, who, text, strlen(text));
}

/* What was sent to the client so far. */
static const char *told(int who)
{
    static char text[1 << 16];
    text[world_take(&w, who, text, sizeof text - 1)] = '\0';
    return text;
}

FIXTURE(setup, teardown)

TEST(values_are_put_got_and_deleted)
{
    say(0, PUT("/global/rank_0", "7", "node001"));
    ck_assert_str_eq(told(0), OK "0\r\n\r\n");
    say(1, GET("/global/rank_0"));
    ck_assert_str_eq(told(1), OK "7\r\n\r\nnode001");
    say(2, PUT("/global/rank_0", "0", ""));
    ck_assert_str_eq(told(2), OK "0\r\n\r\n");
    say(1, GET("/global/rank_0")); /* on a connection that stays open */
    ck_assert_str_eq(told(1), OK "0\r\n\r\n");
    say(3, "DELETE /global/rank_0 HTTP/1.1\r\nHost: h\r\n\r\n");
    ck_assert_str_eq(told(3), OK "0\r\n\r\n");
    say(4, GET("/global/rank_0"));
    ck_assert_str_eq(told(4), "");
    ck_assert(session_holds(&w.peers[4].session));
}

TEST(a_get_is_held_until_the_key_is_there)
{
    say(0, GET("/global/1"));
    ck_assert_str_eq(told(0), "");
    say(1, PUT("/local_h/1", "1", "x")); /* another scope */
    ck_assert_str_eq(told(0), "");
    say(1, PUT("/global/1", "1", "x"));
    ck_assert_str_eq(told(0), OK "1\r\n\r\nx");
}

TEST(a_get_that_expires_is_answered_with_404)
{
    say(0, GET("/global/1"));
    session_expire(&w.peers[0].session);
    world_send(&w, 0, "", 0);
    ck_assert_str_eq(told(0), MISSING);
    say(0, GET("/global/1")); /* and the next one is held again */
    ck_assert_str_eq(told(0), "");
    say(1, PUT("/global/1", "1", "x"));
    ck_assert_str_eq(told(0), OK "1\r\n\r\nx");
}

TEST(requests_arrive_in_any_pieces)
{
    static const char both[] = PUT("/g/a", "3", "xyz") GET("/g/a");
    for (size_t i = 0; i < sizeof both - 1; i++)
        world_send(&w, 0, both + i, 1);
    ck_assert_str_eq(told(0), OK "0\r\n\r\n" OK "3\r\n\r\nxyz");
    say(1, both);
    ck_assert_str_eq(told(1), OK "0\r\n\r\n" OK "3\r\n\r\nxyz");
}

TEST(a_large_value_is_whole)
{
    static char request[100200], answer[100200];
    int head = snprintf(request, sizeof request, PUT("/g/big", "100000", ""));
    memset(request + head, 'v', 100000);
    world_send(&w, 0, request, (size_t)head + 100000);
    told(0);
    say(1, GET("/g/big"));
    size_t n = world_take(&w, 1, answer, sizeof answer);
    ck_assert_uint_eq(n, strlen(OK "100000\r\n\r\n") + 100000);
    ck_assert_int_eq(answer[n - 1], 'v');
}

TEST(a_dropped_scope_ends_its_waits)
{
    say(0, GET("/global/1"));
    world_drop(&w, 0);
    ck_assert(w.peers[0].closed);
}

static const struct {
    const char *request, *answer; /* NULL: closed without one, as PyTorch's store does */
} odd[] = {
    {"GET /global HTTP/1.1\r\n\r\n", NULL},
    {"GET /a/b/c HTTP/1.1\r\n\r\n", NULL},
    {"GET //b HTTP/1.1\r\n\r\n", NULL},
    {"GET /a/ HTTP/1.1\r\n\r\n", NULL},
    {"GET a/b HTTP/1.1\r\n\r\n", NULL},
    {"GET http://h/a/b HTTP/1.1\r\n\r\n", NULL},
    {"GET /a/b\r\n\r\n", NULL},
    {"GET \r\n\r\n", NULL},
    {"POST /a/b HTTP/1.1\r\n\r\n", NULL},
    {"GET /a/b HTTP/2.0\r\n\r\n", "400 Bad Request"},
    {"PUT /a/b HTTP/1.1\r\n\r\n", "411 Length Required"},
    {"PUT /a/b HTTP/1.1\r\nContent-Length:\r\n\r\n", "413 Content Too Large"},
    {"PUT /a/b HTTP/1.1\r\nContent-Length: -1\r\n\r\n", "413 Content Too Large"},
    {"PUT /a/b HTTP/1.1\r\nContent-Length: 1x\r\n\r\n", "413 Content Too Large"},
    {"PUT /a/b HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n",
     "413 Content Too Large"},
    {"PUT /a/b HTTP/1.1\r\ncontent-length: 8388609\r\n\r\n", "413 Content Too Large"},
};

LOOP_TEST(odd_requests_are_refused, ARRAY_LEN(odd))
{
    char first[64];
    say(0, odd[_i].request);
    ck_assert(w.peers[0].closed);
    if (!odd[_i].answer) {
        ck_assert_str_eq(told(0), "");
        return;
    }
    snprintf(first, sizeof first, "HTTP/1.1 %s\r\n", odd[_i].answer);
    ck_assert_int_eq(strncmp(told(0), first, strlen(first)), 0);
}

TEST(a_head_without_end_is_refused)
{
    say(0, "GET /a/b HTTP/1.1\r\n");
    for (int i = 0; i < 1000 && !w.peers[0].closed; i++)
        say(0, "X-Header: more\r\n");
    ck_assert(w.peers[0].closed);
    ck_assert_int_eq(strncmp(told(0), "HTTP/1.1 431", 12), 0);
}

static char asked[256];

/* "KEY;" without a value, "KEY=VALUE;" with one, one after the other */
static void on_asked(struct session_host *h, struct bytes key, const struct bytes *value)
{
    size_t n = strlen(asked);
    snprintf(asked + n, sizeof asked - n, "%.*s%s%.*s;", (int)key.size,
             (const char *)key.data, value ? "=" : "", value ? (int)value->size : 0,
             value ? (const char *)value->data : "");
}

static void give(const char *key, const char *value)
{
    struct ddp_err err;
    ck_assert_int_eq(space_set(w.peers[1].space, (struct bytes){key, strlen(key)},
                               (struct bytes){value, strlen(value)}, &err),
                     0);
    say(1, "");
}

/* Horovod's elastic mode */
TEST(a_place_is_asked_for_once_and_given_once)
{
    asked[0] = '\0';
    w.host.asked = on_asked;
    say(0, PUT("/worker_addresses/h:0", "2", "ab"));
    ck_assert_str_eq(told(0), OK "0\r\n\r\n");
    for (int i = 0; i < 2; i++) {
        say(1, GET("/rank_and_size/h:0"));
        session_expire(&w.peers[1].session); /* its wait has no limit */
        say(1, "");
        ck_assert_str_eq(told(1), "");
        give("rank_and_size/h:0", "0,1,0,1,0,1");
        ck_assert_str_eq(told(1), OK "11\r\n\r\n0,1,0,1,0,1");
    }
    ck_assert_str_eq(asked,
                     "worker_addresses/h:0=ab;rank_and_size/h:0;rank_and_size/h:0;");
    ck_assert(http_is_of_world((struct bytes){"global/rank_0", 13}));
    ck_assert(http_is_of_world((struct bytes){"global_process_set_hash_1/0", 27}));
    ck_assert(!http_is_of_world((struct bytes){"rank_and_size/h:0", 17}));
}

TEST(published_addresses_and_full_connections_are_reported)
{
    asked[0] = '\0';
    w.host.asked = on_asked;
    say(0, PUT("/global/rank_3", "1", "h"));
    say(0, PUT("/global/3", "2", "ab"));
    say(0, PUT("/global_process_set_hash_1f/0", "2", "ab"));
    say(0, DELETE("/global/3"));
    say(0, DELETE("/local_h/1"));
    say(0, DELETE("/cross_1_process_set_hash_1f/0"));
    say(0, DELETE("/cross_1/2"));
    ck_assert_str_eq(asked, "global/3;cross_1/2;");
}
