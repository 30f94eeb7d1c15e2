/* tests/fuzz/fuzz_client.c - what a store answers to the client library
 *
 * Input: a byte that chooses the call and the kind of server, then the server's bytes,
 * after which the connection is closed. Aborts when a call succeeds without a value that
 * it must have, when it fails without a text or leaves values behind, and when a broken
 * connection does not say the same again.
 */
#include "rendezvous/client/client.h"
#include "tests/fuzz/fuzz.h"

#include "common/mem.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { VALUES = 3 };

static const char *const keys[VALUES] = {"a", "b", "c"};

struct outcome {
    int rc;
    size_t nvalues; /* that must be there after success */
    struct ddp_value values[VALUES];
    struct ddp_err err;
};

static void fail(const char *what, const char *text)
{
    fprintf(stderr, "%s: '%s'\n", what, text);
    abort();
}

static void call(struct ddp_store *s, unsigned which, struct outcome *o)
{
    struct ddp_err *err = &o->err;
    struct ddp_value *v = o->values;
    int64_t n;
    int yes;
    switch (which % 12) {
    case 0:
        o->nvalues = 1;
        o->rc = ddp_store_get(s, "a", v, err);
        break;
    case 1:
        o->nvalues = VALUES;
        o->rc = ddp_store_multi_get(s, keys, VALUES, v, err);
        break;
    case 2:
        o->nvalues = VALUES;
        o->rc = ddp_store_fence(s, "f", 0, VALUES, "x", 1, v, err);
        break;
    case 3:
        o->nvalues = 1;
        o->rc = ddp_store_queue_pop(s, "q", v, err);
        break;
    case 4:
        o->nvalues = 1;
        o->rc = ddp_store_compare_set(s, "a", "", 0, "1", 1, v, err);
        break;
    case 5:
        o->rc = ddp_store_barrier(s, "b", 2, err);
        break;
    case 6:
        o->rc = ddp_store_wait(s, keys, VALUES, err);
        break;
    case 7:
        o->rc = ddp_store_add(s, "n", 1, &n, err);
        break;
    case 8:
        o->rc = ddp_store_check(s, keys, VALUES, &yes, err);
        break;
    case 9:
        o->rc = ddp_store_delete(s, "a", &yes, err);
        break;
    case 10:
        o->rc = ddp_store_queue_len(s, "q", &n, err);
        break;
    default:
        o->rc = ddp_store_num_keys(s, &n, err);
        break;
    }
}

static void check(struct ddp_store *s, struct outcome *o)
{
    struct ddp_err again = {""};
    if (o->rc == 0) {
        for (size_t i = 0; i < o->nvalues; i++) {
            const char *data = o->values[i].data;
            if (!data || data[o->values[i].size] != '\0')
                fail("success without a value", "");
        }
        ddp_values_free(o->values, o->nvalues);
        return;
    }
    if (o->err.text[0] == '\0')
        fail("a failure without words", "");
    for (size_t i = 0; i < VALUES; i++) {
        if (o->values[i].data)
            fail("a failure that leaves values", o->err.text);
    }
    if (s->x.fd >= 0)
        fail("a closed connection that is in use", o->err.text);
    if (ddp_store_num_keys(s, &(int64_t){0}, &again) == 0 ||
        strcmp(again.text, o->err.text) != 0)
        fail("another text for the same failure", again.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int pair[2];
    if (size == 0 || size > 4096)
        return 0;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) < 0 ||
        send(pair[1], data + 1, size - 1, MSG_NOSIGNAL) != (ssize_t)(size - 1) ||
        shutdown(pair[1], SHUT_WR) < 0)
        abort();
    fcntl(pair[0], F_SETFL, O_NONBLOCK);
    struct ddp_store *s = xcalloc(1, sizeof *s);
    s->x.fd = pair[0];
    s->x.peer = xstrdup("here");
    s->in_order = data[0] & 0x80;
    ddp_store_set_timeout(s, 5000);
    struct outcome o = {.rc = 0};
    call(s, data[0], &o);
    check(s, &o);
    ddp_store_close(s);
    close(pair[1]);
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    static const struct {
        const char *bytes;
        size_t size;
    } seeds[] = {
        {"\x84\0\1\0\0\0\0\0\0\0v", 11}, /* get, released at once */
        {"\x0c\0\1\0\0\0\0\0\0\0v", 11},
        {"\x85\0\1\0\0\0\0\0\0\0v\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0w", 28},
        {"\x86\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0w", 27},
        {"\x87\0\2\0\0\0\0\0\0\0\1\0\0\0\0\0\0\0w", 19}, /* pop */
        {"\x88\1\0\0\0\0\0\0\0x", 10},                   /* compare_set */
        {"\x05\2\0\0\0\0\0\0\0\0", 10},                  /* barrier of other calls */
        {"\x87\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 19},
    };
    size_t i = n % ARRAY_LEN(seeds), size = seeds[i].size < room ? seeds[i].size : room;
    memcpy(data, seeds[i].bytes, size);
    return size;
}
