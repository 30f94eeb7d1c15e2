/* Memory that is gone: the n-th allocation of a conversation fails, for every n.
 *
 * The client whose request it was is closed with a reason; the others and the store go
 * on, and nothing is lost (a sanitizer build counts). Allocations are taken away by the
 * linker's --wrap, only while a session is being fed.
 */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "tests/rendezvous/world.h"

#include <stdio.h>
#include <stdlib.h>

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t size);
void *__real_malloc(size_t size);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t size);

static struct world w;
static bool armed;
static int countdown; /* 1: the next one fails */
static int failed;

static bool gone(void)
{
    if (!armed || --countdown != 0)
        return false;
    failed++;
    return true;
}

void *__wrap_malloc(size_t size)
{
    return gone() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return gone() ? NULL : __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t size)
{
    return gone() ? NULL : __real_realloc(p, size);
}

static void on_feeding(bool begins)
{
    armed = begins;
}

/* A request in D3's numbers: a letter and a text for each operand. k key, v long value,
 * i number, K and P lists of `n` keys or pairs. */
static void request(int who, uint8_t opcode, const char *key, int n)
{
    static uint8_t data[1 << 16];
    size_t size = 1;
    data[0] = opcode;
    for (const char *shape = op_infos[dialect_op(&dialect_d3, opcode)].shape; *shape;
         shape++) {
        uint64_t count = *shape == 'K' || *shape == 'P' ? (uint64_t)n : 1;
        if (*shape == 'K' || *shape == 'P' || *shape == 'i') {
            uint64_t number = (uint64_t)n;
            memcpy(data + size, &number, sizeof number);
            size += sizeof number;
        }
        for (uint64_t i = 0; i < count && *shape != 'i'; i++) {
            for (int half = 0; half <= (*shape == 'P'); half++) {
                uint64_t length = *shape == 'v' || half ? 100 : strlen(key) + 2;
                memcpy(data + size, &length, sizeof length);
                size += sizeof length;
                memset(data + size, 'v', length);
                if (length < 100)
                    snprintf((char *)data + size, 80, "%s%02u", key, (unsigned)i);
                size += length;
            }
        }
    }
    world_send(&w, who, data, size);
}

static void conversation(void)
{
    static const char hello[] = "\0\xce\xf7\x85\x3c";
    static const char watch[] = "\x07\x04\0\0\0\0\0\0\0/k00";
    for (int who = 1; who <= 4; who++)
        world_send(&w, who, hello, 5);
    world_send(&w, 5, watch, sizeof watch - 1);
    request(2, 6, "/k", 20); /* WAIT, and behind it */
    request(2, 10, "/k", 40);
    request(3, 6, "/k", 20);
    request(4, 18, "/bar", 2); /* BARRIER */
    request(1, 1, "/k", 0);
    request(1, 9, "/k", 0);
    request(1, 2, "/cs", 0);
    request(1, 11, "/k", 40);
    request(1, 4, "/n", 7);
    request(1, 14, "/q", 0);
    request(1, 15, "/q", 0);
    for (int i = 0; i < 3; i++) {
        request(3, 10, "/k", 40);
        request(1, 17, "", 0);
    }
    request(1, 18, "/bar", 2);
    request(1, 8, "/k", 0);
}

TEST(each_allocation_may_fail)
{
    int n = 0;
    do {
        world_init(&w, DIALECT_AUTO);
        w.feeding = on_feeding;
        failed = 0;
        countdown = ++n;
        conversation();
        countdown = 0;
        int closed = 0;
        size_t waiting = 0;
        for (int who = 0; who < WORLD_PEERS; who++) {
            const struct peer *p = &w.peers[who];
            closed += p->closed;
            waiting += p->open && session_waits(&p->session);
            ck_assert_msg(!p->closed || strstr(p->why.text, "no memory"), "%s",
                          p->why.text);
        }
        /* a kept reply is an optimisation: without memory for it no session is closed */
        ck_assert_int_le(closed, failed);
        ck_assert_uint_eq(waiting, store_waiters(w.store));
        for (int who = 0; who < WORLD_PEERS; who++)
            world_close(&w, who);
        world_drop(&w, 0);
        ck_assert_uint_eq(store_bytes(w.store), 0);
        world_finish(&w);
    } while (failed > 0);
    ck_assert_int_gt(n, 80);
}
