/* The engine: framing, limits, dialects, and what it does when the reader is slow.
 * Conversations are in tests/data/tcpstore; here is what they cannot show. */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "tests/rendezvous/world.h"

#include <stdio.h>
#include <stdlib.h>

static struct world w;

static void setup(void)
{
    world_init(&w, DIALECT_AUTO);
}

static void teardown(void)
{
    world_finish(&w);
}

/* A request under construction. */
struct message {
    uint8_t data[1 << 16];
    size_t size;
};

static void raw(struct message *m, const void *data, size_t n)
{
    ck_assert_uint_le(m->size + n, sizeof m->data);
    memcpy(m->data + m->size, data, n);
    m->size += n;
}

static void op(struct message *m, uint8_t opcode)
{
    raw(m, &opcode, 1);
}

static void number(struct message *m, uint64_t n)
{
    raw(m, &n, sizeof n);
}

static void string(struct message *m, const char *text)
{
    number(m, strlen(text));
    raw(m, text, strlen(text));
}

static void say(int who, const struct message *m)
{
    world_send(&w, who, m->data, m->size);
}

static void hello(int who)
{
    static const uint8_t bytes[] = {0, 0xce, 0xf7, 0x85, 0x3c};
    world_send(&w, who, bytes, sizeof bytes);
}

static const char *why(int who)
{
    return w.peers[who].closed ? w.peers[who].why.text : "still open";
}

/* One of each request in D3's numbers, as its bytes. */
static struct message sample(uint8_t opcode)
{
    struct message m = {.size = 0};
    op(&m, opcode);
    for (const char *shape = op_infos[dialect_op(&dialect_d3, opcode)].shape; *shape;
         shape++) {
        switch (*shape) {
        case 'k':
            string(&m, "/key");
            break;
        case 'v':
            string(&m, "17");
            break;
        case 'i':
            number(&m, 1);
            break;
        case 'n':
            raw(&m, "\xce\xf7\x85\x3c", 4);
            break;
        case 'K':
            number(&m, 2);
            string(&m, "/key");
            string(&m, "");
            break;
        default:
            number(&m, 2);
            string(&m, "/key");
            string(&m, "1");
            string(&m, "/other");
            string(&m, "");
        }
    }
    return m;
}

FIXTURE(setup, teardown)

/* Walked in one go and byte by byte; each prefix wants more. */
LOOP_TEST(every_prefix_of_a_request_wants_more, 19)
{
    struct message m = sample((uint8_t)_i);
    struct frame_limits limits = {8192, 8192, 100, 1 << 20};
    struct frame slow = {0};
    struct ddp_err err;
    for (size_t n = 0; n <= m.size; n++) {
        struct frame fast = {0};
        enum frame_state want = n < m.size ? FRAME_MORE : FRAME_WHOLE;
        uint8_t *exact = xmemdup(m.data, n ? n : 1);
        ck_assert_int_eq(frame_walk(&fast, &dialect_d3, &limits, exact, n, &err), want);
        ck_assert_int_eq(frame_walk(&slow, &dialect_d3, &limits, exact, n, &err), want);
        free(exact);
    }
    ck_assert_uint_eq(slow.at, m.size);
    struct request r = {0};
    frame_request(&slow, m.data, &r);
    ck_assert_int_eq(r.op, dialect_op(&dialect_d3, (uint8_t)_i));
}

static const struct {
    uint8_t opcode;
    uint64_t first, second; /* lengths or counts; second behind a key "/k" */
    const char *why;
} limits[] = {
    {3, 8193, 0, "GET announced a key of 8193 bytes, 8192 are allowed"},
    {3, UINT64_MAX, 0, "announced a key of 18446744073709551615 bytes"},
    {1, 0, 8388609, "SET announced a value of 8388609 bytes, 8388608 are allowed"},
    {9, 0, 1ull << 40, "APPEND announced a value of 1099511627776 bytes"},
    {6, 131073, 0, "WAIT announced 131073 keys, 131072 are allowed"},
    {11, 131073, 0, "MULTI_SET announced 131073 keys"},
    {10, UINT64_MAX, 0, "MULTI_GET announced 18446744073709551615 keys"},
    {1, 8192, 0, "still open"},
    {1, 0, 8388608, "still open"},
    {6, 131072, 0, "still open"},
    {19, 0, 0, "there is no request 19 in the protocol of PyTorch since 2.2"},
};

/* The announcement alone decides, and nothing is allocated for it. */
LOOP_TEST(limits_are_judged_as_announced, ARRAY_LEN(limits))
{
    struct message m = {.size = 0};
    hello(1);
    op(&m, limits[_i].opcode);
    if (limits[_i].second) {
        string(&m, "/k");
        number(&m, limits[_i].second);
    } else {
        number(&m, limits[_i].first);
    }
    say(1, &m);
    ck_assert_msg(strstr(why(1), limits[_i].why) != NULL, "%s", why(1));
}

TEST(a_whole_request_has_a_limit_too)
{
    struct message m = {.size = 0};
    w.host.limits.max_request = 1000;
    hello(1);
    op(&m, 11);
    number(&m, 100);
    for (int i = 0; i < 20; i++) {
        string(&m, "/key");
        string(&m, "a value of some thirty bytes..");
    }
    say(1, &m);
    ck_assert_ptr_nonnull(strstr(why(1), "MULTI_SET is longer than the 1000 bytes"));
}

static const struct dialect none;

static const struct {
    enum dialect_rule rule;
    const char *bytes;
    size_t n;
    const struct dialect *dialect; /* NULL: not known yet; &none: closed */
} greetings[] = {
    {DIALECT_AUTO, "\0\xce\xf7\x85\x3c", 5, &dialect_d3},
    {DIALECT_D0, "\0\xce\xf7\x85\x3c", 5, &dialect_d3},
    {DIALECT_D2, "\0\xce\xf7\x85\x3c", 5, &dialect_d3},
    {DIALECT_D3, "\0\xce\xf7\x85\x3c", 5, &dialect_d3},
    {DIALECT_AUTO, "\0\xce\xf7\x85", 4, NULL},
    {DIALECT_AUTO, "\0\x02\0\0\0", 5, &dialect_d0},
    {DIALECT_AUTO, "\0\x00\x20\0\0", 5, &dialect_d0}, /* 8192 */
    {DIALECT_AUTO, "\0\x01\x20\0\0", 5, &none},
    {DIALECT_AUTO, "\0\xce\xf7\x85\x3d", 5, &none},
    {DIALECT_AUTO, "\x03", 1, &dialect_d0},
    {DIALECT_AUTO, "\x08", 1, &dialect_d0},
    {DIALECT_AUTO, "\x09", 1, &dialect_d2},
    {DIALECT_AUTO, "\x0b", 1, &dialect_d2},
    {DIALECT_AUTO, "\x0c", 1, &none},
    {DIALECT_D0, "\x09", 1, &none},
    {DIALECT_D2, "\x03", 1, &dialect_d2},
    {DIALECT_D3, "\x03", 1, &none},
    {DIALECT_D3, "\0\x02\0\0\0", 5, &none},
    {DIALECT_AUTO, "GET / HTTP/1.0\r\n\r\n", 18, &none},
};

LOOP_TEST(the_dialect_is_detected_from_the_first_bytes, ARRAY_LEN(greetings))
{
    w.host.rule = greetings[_i].rule;
    world_send(&w, 1, greetings[_i].bytes, greetings[_i].n);
    const struct peer *p = &w.peers[1];
    ck_assert_ptr_eq(p->closed ? &none : p->session.dialect, greetings[_i].dialect);
}

/* A reader that takes nothing: requests stop being executed, and go on when it reads. */
TEST(a_slow_reader_stops_its_own_requests)
{
    struct message set = {.size = 0}, get = {.size = 0};
    char value[1001] = "";
    memset(value, 'v', 1000);
    w.host.output_mark = 5000;
    hello(1);
    op(&set, 1);
    string(&set, "/k");
    string(&set, value);
    say(1, &set);
    for (int i = 0; i < 100; i++) {
        op(&get, 3);
        string(&get, "/k");
    }
    say(1, &get);
    ck_assert_uint_lt(world_pending(&w, 1), 5000 + 1008);
    ck_assert(w.peers[1].session.stalled);
    char reply[1008];
    for (int i = 0; i < 100; i++)
        ck_assert_uint_eq(world_take(&w, 1, reply, sizeof reply), sizeof reply);
    ck_assert_uint_eq(world_pending(&w, 1), 0);
    ck_assert_uint_eq(w.peers[1].nheld, 0);
}

/* Large values are lent, not copied: a hundred readers cost no more than one. */
TEST(large_values_are_shared_with_slow_readers)
{
    static char value[40000];
    struct message m = {.size = 0};
    hello(1);
    op(&m, 1);
    string(&m, "/k");
    number(&m, sizeof value);
    memset(value, 'x', sizeof value);
    raw(&m, value, sizeof value);
    op(&m, 3);
    string(&m, "/k");
    say(1, &m);
    ck_assert_uint_eq(w.peers[1].out.nrefs, 1);
    ck_assert_uint_eq(w.peers[1].out.size, 8);
    struct message over = {.size = 0};
    op(&over, 1);
    string(&over, "/k");
    string(&over, "new");
    say(1, &over);
    static char got[8 + sizeof value];
    ck_assert_uint_eq(world_take(&w, 1, got, sizeof got), sizeof got);
    ck_assert_int_eq(memcmp(got + 8, value, sizeof value), 0);
}

static struct message multi_get(int nkeys)
{
    struct message m = {.size = 0};
    char key[16];
    op(&m, 10);
    number(&m, (uint64_t)nkeys);
    for (int i = 0; i < nkeys; i++) {
        snprintf(key, sizeof key, "/k%d", i);
        string(&m, key);
    }
    return m;
}

/* The reply that is kept for many clients is the one of now, whatever was written. */
TEST(equal_requests_get_equal_current_replies)
{
    enum { N = 100 };
    static char got[N * 32], first[N * 32];
    struct message m = multi_get(N);
    hello(1);
    for (int round = 0; round < 6; round++) {
        struct message set = {.size = 0};
        op(&set, 1);
        string(&set, "/k7");
        string(&set, round % 2 ? "odd" : "even");
        say(1, &set);
        size_t size = 8 * N + (round % 2 ? 3 : 4);
        for (int again = 0; again < 4; again++) {
            say(1, &m);
            ck_assert_uint_eq(world_pending(&w, 1), size);
            world_take(&w, 1, got, size);
            ck_assert(again == 0 || memcmp(got, first, size) == 0);
            memcpy(first, got, size);
            ck_assert_mem_eq(got + 8 * 8, round % 2 ? "odd" : "even", 3);
        }
    }
}

TEST(dropping_a_scope_closes_its_waiting_clients)
{
    struct message m = {.size = 0};
    for (int who = 1; who <= 3; who++) {
        world_open(&w, who, who == 3);
        hello(who);
    }
    op(&m, 6);
    number(&m, 1);
    string(&m, "/never");
    say(1, &m);
    say(3, &m);
    world_drop(&w, 0);
    ck_assert_str_eq(why(1), "the keys it waited for have been dropped");
    ck_assert_str_eq(why(2), "still open");
    ck_assert_str_eq(why(3), "still open");
}

TEST(a_client_that_leaves_no_longer_waits_or_watches)
{
    struct message watch = {.size = 0}, wait = {.size = 0}, set = {.size = 0};
    op(&watch, 7);
    string(&watch, "/k");
    op(&wait, 5);
    number(&wait, 1);
    string(&wait, "/k");
    say(1, &watch);
    say(2, &wait);
    ck_assert_uint_eq(store_waiters(w.store), 1);
    world_close(&w, 1);
    world_close(&w, 2);
    ck_assert_uint_eq(store_waiters(w.store), 0);
    op(&set, 0);
    string(&set, "/k");
    string(&set, "v");
    say(3, &set);
    ck_assert_uint_eq(world_pending(&w, 2), 0);
}

TEST(a_key_that_is_watched_twice_is_pushed_once)
{
    struct message m = {.size = 0}, set = {.size = 0};
    op(&m, 7);
    string(&m, "/k");
    say(1, &m);
    say(1, &m);
    ck_assert_uint_eq(world_pending(&w, 1), 2); /* both are confirmed */
    op(&set, 0);
    string(&set, "/k");
    string(&set, "value");
    say(2, &set);
    ck_assert_uint_eq(world_pending(&w, 1), 2 + 1 + (8 + 2) + 8 + (8 + 5));
}

/* A client of that scope sets a key and gets it back. */
static void served(int who, unsigned scope)
{
    struct message m = {.size = 0};
    char reply[16];
    world_open(&w, who, scope);
    hello(who);
    op(&m, 1);
    string(&m, "/sane");
    string(&m, "value");
    op(&m, 3);
    string(&m, "/sane");
    say(who, &m);
    ck_assert_uint_eq(world_take(&w, who, reply, sizeof reply), 8 + 5);
    ck_assert_mem_eq(reply, "\5\0\0\0\0\0\0\0value", 8 + 5);
    world_close(&w, who);
}

/* Nothing that a client sends may do harm: others are served, and nothing of it is left
 * when it has gone. A sanitizer build sees the rest. */
LOOP_TEST(random_bytes_never_crash, 8)
{
    unsigned x = (unsigned)_i * 2654435761u + 1;
    for (int round = 0; round < 400; round++) {
        int who = 1 + round % 4;
        world_open(&w, who, (unsigned)round % 2);
        if (round % 3)
            hello(who);
        for (int step = 0; step < 6; step++) {
            struct message m = sample((uint8_t)((x >> 8) % 19));
            for (int flips = (x >> 16) % 3; flips > 0; flips--) {
                x = x * 1103515245 + 12345;
                m.data[(x >> 8) % m.size] = (uint8_t)(x >> 20);
            }
            x = x * 1103515245 + 12345;
            if (x >> 30 == 0)
                m.size = (x >> 10) % m.size;
            say(who, &m);
        }
        served(5, (unsigned)round % 2);
        world_close(&w, who);
        ck_assert_uint_eq(store_waiters(w.store), 0);
    }
}
