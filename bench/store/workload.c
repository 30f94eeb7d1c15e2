/* bench/store/workload.c - see workload.h */
#include "bench/store/workload.h"

#include "common/mem.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SET = 1, GET = 3, ADD = 4, WAIT = 6, MULTI_GET = 10, MULTI_SET = 11, PING = 13 };

static const uint32_t nonce = 0x6e6f6e63;

void buf_add(struct buf *b, const void *data, size_t n)
{
    if (b->n + n > b->room) {
        b->room = (b->n + n) * 2;
        b->data = xrealloc(b->data, b->room, 1);
    }
    if (n > 0)
        memcpy(b->data + b->n, data, n);
    b->n += n;
}

void buf_finish(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}

void exchange_finish(struct exchange *x)
{
    buf_finish(&x->request);
    buf_finish(&x->reply);
    *x = (struct exchange){0};
}

static void u8(struct buf *b, uint8_t v)
{
    buf_add(b, &v, 1);
}

static void u64(struct buf *b, uint64_t v)
{
    buf_add(b, &v, 8); /* little-endian, as the protocol wants it */
}

static void str(struct buf *b, const void *data, size_t n)
{
    u64(b, n);
    buf_add(b, data, n);
}

static void keyf(struct buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void keyf(struct buf *b, const char *fmt, ...)
{
    char text[64];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    str(b, text, strlen(text));
}

static void text(struct buf *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void text(struct buf *b, const char *fmt, ...)
{
    char line[256];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    buf_add(b, line, (size_t)n);
}

/* The value of a key: `size` bytes that tell the key. */
static void value(struct buf *b, size_t key, size_t size)
{
    for (size_t i = 0; i < size; i++)
        u8(b, (uint8_t)('a' + (key + i) % 26));
}

static void value_str(struct buf *b, size_t key, size_t size)
{
    u64(b, size);
    value(b, key, size);
}

static void bulk(struct buf *b, size_t key, size_t size)
{
    text(b, "$%zu\r\n", size);
    value(b, key, size);
    text(b, "\r\n");
}

static void ping(struct exchange *x)
{
    u8(&x->request, PING);
    buf_add(&x->request, &nonce, 4);
    buf_add(&x->reply, &nonce, 4);
}

void workload_hello(enum kind kind, struct exchange *x)
{
    *x = (struct exchange){0};
    if (kind == KIND_REDIS) {
        text(&x->request, "*1\r\n$4\r\nPING\r\n");
        text(&x->reply, "+PONG\r\n");
        return;
    }
    buf_add(&x->request, "\0\xce\xf7\x85\x3c", 5);
    ping(x);
    if (kind == KIND_ECHO) {
        buf_finish(&x->reply);
        buf_add(&x->reply, x->request.data, x->request.n);
    }
}

bool workload_prepare(const struct shape *s, struct exchange *x)
{
    *x = (struct exchange){0};
    if (s->kind == KIND_ECHO)
        return true;
    if (s->kind == KIND_REDIS) {
        text(&x->request, "*%zu\r\n$4\r\nMSET\r\n", 1 + 2 * s->keys);
        for (size_t k = 0; k < s->keys; k++) {
            char key[24];
            int n = snprintf(key, sizeof key, "/k%zu", k);
            text(&x->request, "$%d\r\n%s\r\n", n, key);
            bulk(&x->request, k, s->size);
        }
        text(&x->reply, "+OK\r\n");
        return true;
    }
    u8(&x->request, MULTI_SET);
    u64(&x->request, s->keys);
    for (size_t k = 0; k < s->keys; k++) {
        keyf(&x->request, "/k%zu", k);
        value_str(&x->request, k, s->size);
    }
    ping(x); /* MULTI_SET has no answer of its own */
    return true;
}

static bool tcpstore_op(const struct shape *s, size_t i, struct exchange *x)
{
    size_t k = i % s->keys;
    if (strcmp(s->op, "get") == 0 || strcmp(s->op, "waitget") == 0) {
        if (*s->op == 'w') {
            u8(&x->request, WAIT);
            u64(&x->request, 1);
            keyf(&x->request, "/k%zu", k);
            u8(&x->reply, 0);
        }
        u8(&x->request, GET);
        keyf(&x->request, "/k%zu", k);
        value_str(&x->reply, k, s->size);
    } else if (strcmp(s->op, "set") == 0) {
        u8(&x->request, SET);
        keyf(&x->request, "/k%zu", k);
        value_str(&x->request, k, s->size);
    } else if (strcmp(s->op, "add") == 0) {
        u8(&x->request, ADD);
        keyf(&x->request, "/n");
        u64(&x->request, 1);
        x->reply_bytes += 8;
    } else if (strcmp(s->op, "mget") == 0) {
        u8(&x->request, MULTI_GET);
        u64(&x->request, s->keys);
        for (k = 0; k < s->keys; k++) {
            keyf(&x->request, "/k%zu", k);
            value_str(&x->reply, k, s->size);
        }
    } else {
        return false;
    }
    return true;
}

static void redis_key(struct buf *b, size_t k)
{
    char key[24];
    int n = snprintf(key, sizeof key, "/k%zu", k);
    text(b, "$%d\r\n%s\r\n", n, key);
}

static bool redis_op(const struct shape *s, size_t i, struct exchange *x)
{
    size_t k = i % s->keys;
    if (strcmp(s->op, "get") == 0) {
        text(&x->request, "*2\r\n$3\r\nGET\r\n");
        redis_key(&x->request, k);
        bulk(&x->reply, k, s->size);
    } else if (strcmp(s->op, "set") == 0) {
        text(&x->request, "*3\r\n$3\r\nSET\r\n");
        redis_key(&x->request, k);
        bulk(&x->request, k, s->size);
        text(&x->reply, "+OK\r\n");
    } else if (strcmp(s->op, "add") == 0) {
        text(&x->request, "*3\r\n$6\r\nINCRBY\r\n$2\r\n/n\r\n$1\r\n1\r\n");
        x->reply_lines++;
    } else if (strcmp(s->op, "mget") == 0) {
        text(&x->request, "*%zu\r\n$4\r\nMGET\r\n", 1 + s->keys);
        text(&x->reply, "*%zu\r\n", s->keys);
        for (k = 0; k < s->keys; k++) {
            redis_key(&x->request, k);
            bulk(&x->reply, k, s->size);
        }
    } else {
        return false;
    }
    return true;
}

bool workload_make(const struct shape *s, struct workload *w)
{
    *w = (struct workload){.nsteps = 1, .ops = s->depth};
    struct exchange *x = &w->steps[0];
    for (size_t i = 0; i < s->depth; i++) {
        bool known = s->kind == KIND_REDIS ? redis_op(s, i, x) : tcpstore_op(s, i, x);
        if (!known)
            return false;
    }
    if (s->kind == KIND_ECHO) { /* as many bytes go in; the same come back */
        buf_finish(&x->reply);
        x->reply_bytes = 0;
        buf_add(&x->reply, x->request.data, x->request.n);
    } else if (s->kind != KIND_REDIS && strcmp(s->op, "set") == 0) {
        ping(x); /* SET has no answer of its own */
    }
    return true;
}

void workload_fence(const struct shape *s, size_t round, struct workload *w)
{
    *w = (struct workload){.nsteps = s->kind == KIND_DDP ? 1 : 2, .ops = 1};
    struct exchange *wait = &w->steps[0], *fetch = &w->steps[w->nsteps - 1];
    u8(&wait->request, WAIT);
    u64(&wait->request, s->clients);
    for (size_t i = 0; i < s->clients; i++)
        keyf(&wait->request, "/f%zu/%zu", round, i);
    u8(&wait->reply, 0);
    u8(&fetch->request, MULTI_GET);
    u64(&fetch->request, s->clients);
    for (size_t i = 0; i < s->clients; i++) {
        keyf(&fetch->request, "/f%zu/%zu", round, i);
        value_str(&fetch->reply, i, s->size);
    }
}

void workload_fence_own(const struct shape *s, size_t round, size_t i, struct buf *own)
{
    u8(own, SET);
    keyf(own, "/f%zu/%zu", round, i);
    value_str(own, i, s->size);
}

void workload_subscribe(const struct shape *s, struct exchange *x)
{
    *x = (struct exchange){0};
    if (s->kind == KIND_REDIS) {
        text(&x->request, "*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nw\r\n");
        text(&x->reply, "*3\r\n$9\r\nsubscribe\r\n$1\r\nw\r\n:1\r\n");
    }
}

void workload_wake(const struct shape *s, size_t round, struct exchange *waiter,
                   struct exchange *waker)
{
    *waiter = *waker = (struct exchange){0};
    if (s->kind == KIND_REDIS) {
        text(&waiter->reply, "*3\r\n$7\r\nmessage\r\n$1\r\nw\r\n$1\r\n1\r\n");
        text(&waker->request, "*3\r\n$7\r\nPUBLISH\r\n$1\r\nw\r\n$1\r\n1\r\n");
        waker->reply_lines = 1;
        return;
    }
    u8(&waiter->request, WAIT);
    u64(&waiter->request, 1);
    keyf(&waiter->request, "/w%zu", round);
    u8(&waiter->reply, 0);
    u8(&waker->request, SET);
    keyf(&waker->request, "/w%zu", round);
    str(&waker->request, "1", 1);
    ping(waker);
}
