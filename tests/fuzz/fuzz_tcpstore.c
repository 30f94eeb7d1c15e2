/* tests/fuzz/fuzz_tcpstore.c - several clients of one store, saying anything
 *
 * Input: a byte for the dialect rule, then steps. A step is a byte (low three bits: which
 * client; the rest: what it does) and, for a message, a length byte and the bytes.
 * Aborts when a client that waits is not counted, or one that does not wait is; when
 * replies are left out or doubled the conversations in tests/data would show it.
 */
#include "tests/fuzz/fuzz.h"
#include "tests/rendezvous/world.h"

#include <stdio.h>
#include <stdlib.h>

enum { CLIENTS = 8, TAKE_MAX = 4096 };

static void check(struct world *w)
{
    size_t waiting = 0;
    for (int i = 0; i < WORLD_PEERS; i++)
        waiting += w->peers[i].open && session_waits(&w->peers[i].session);
    if (waiting != store_waiters(w->store)) {
        fprintf(stderr, "%zu clients wait, the store says %zu\n", waiting,
                store_waiters(w->store));
        abort();
    }
}

static size_t step(struct world *w, const uint8_t *data, size_t size)
{
    static uint8_t taken[TAKE_MAX];
    int who = data[0] % CLIENTS;
    switch (data[0] >> 3) {
    case 0:
        world_close(w, who);
        return 1;
    case 1:
        world_close(w, who);
        world_open(w, who, (unsigned)who % 2);
        return 1;
    case 2:
        world_take(w, who, taken, sizeof taken);
        return 1;
    case 3:
        world_drop(w, (unsigned)who % 2);
        return 1;
    case 4:
        if (w->peers[who].open)
            session_expire(&w->peers[who].session);
        world_send(w, who, "", 0);
        return 1;
    default:
        if (size < 2)
            return size;
        size_t n = data[1] < size - 2 ? data[1] : size - 2;
        world_send(w, who, data + 2, n);
        return 2 + n;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct world w;
    if (size == 0)
        return 0;
    world_init(&w, (enum dialect_rule)(data[0] % 4));
    w.host.limits = (struct frame_limits){64, 4096, 128, 16384};
    w.host.output_mark = 2048;
    for (size_t at = 1; at < size;) {
        at += step(&w, data + at, size - at);
        check(&w);
    }
    world_finish(&w);
    return 0;
}

/* -- seeds: conversations of valid requests -------------------------------------------
 */

struct writer {
    uint8_t *data;
    size_t size, room;
    uint64_t state;
};

static unsigned pick(struct writer *w, unsigned n)
{
    w->state = w->state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(w->state >> 33) % n;
}

static void put(struct writer *w, const void *bytes, size_t n)
{
    if (n <= w->room - w->size) {
        memcpy(w->data + w->size, bytes, n);
        w->size += n;
    }
}

static void put_number(struct writer *w, uint64_t n)
{
    put(w, &n, sizeof n);
}

static void put_string(struct writer *w)
{
    static const char *const words[] = {"/a", "/b", "/c", "1", "", "/queue", "-7"};
    const char *word = words[pick(w, sizeof words / sizeof *words)];
    put_number(w, strlen(word));
    put(w, word, strlen(word));
}

static void put_request(struct writer *w, const struct dialect *d)
{
    uint8_t opcode = (uint8_t)pick(w, (unsigned)d->nops);
    if (d == &dialect_d3 && opcode == 0)
        opcode = 6; /* a second VALIDATE would end it: rather a WAIT */
    put(w, &opcode, 1);
    for (const char *shape = op_infos[dialect_op(d, opcode)].shape; *shape; shape++) {
        unsigned n = pick(w, 4);
        switch (*shape) {
        case 'k':
        case 'v':
            put_string(w);
            break;
        case 'n':
            put(w, "\1\2\3\4", 4);
            break;
        case 'i':
            put_number(w, n);
            break;
        default:
            put_number(w, n);
            for (unsigned i = 0; i < (*shape == 'P' ? 2 * n : n); i++)
                put_string(w);
        }
    }
}

/* As Horovod's clients send it, whole in one message. */
static void put_http(struct writer *w, unsigned who)
{
    static const char *const requests[] = {
        "GET /global/0 HTTP/1.1\r\nHost: h:1\r\n\r\n",
        "PUT /global/0 HTTP/1.1\r\nContent-Length: 4\r\n\r\naddr",
        "DELETE /global HTTP/1.1\r\nContent-Length: 1\r\n\r\n0",
        "GET /rank_and_size/h:0 HTTP/1.1\r\n\r\n",
        "PUT /worker_addresses/h:1 HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}",
    };
    const char *request = requests[pick(w, sizeof requests / sizeof *requests)];
    uint8_t head[2] = {(uint8_t)(0x20 | who), (uint8_t)strlen(request)};
    put(w, head, sizeof head);
    put(w, request, head[1]);
}

/* The step's length byte is filled in afterwards. */
static void put_message(struct writer *w, unsigned who, const struct dialect *d,
                        bool hello)
{
    uint8_t head[2] = {(uint8_t)(0x20 | who), 0};
    put(w, head, sizeof head);
    size_t from = w->size;
    if (hello)
        put(w, "\0\xce\xf7\x85\x3c", 5);
    for (unsigned n = 1 + pick(w, 3); n > 0; n--)
        put_request(w, d);
    if (w->size - from > 255)
        w->size = from + 255;
    w->data[from - 1] = (uint8_t)(w->size - from);
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    static const struct dialect *const dialects[] = {&dialect_d3, &dialect_d3,
                                                     &dialect_d0, &dialect_d2};
    struct writer w = {data, 0, room < 2000 ? room : 2000, n};
    bool greeted[CLIENTS] = {false};
    put(&w, "\0", 1);
    for (unsigned steps = 4 + pick(&w, 16); steps > 0; steps--) {
        unsigned who = pick(&w, 4);
        const struct dialect *d = dialects[who];
        if (n % 4 == 3 && pick(&w, 2)) {
            put_http(&w, 4 + pick(&w, 4));
            continue;
        }
        uint8_t other = (uint8_t)(pick(&w, 4) << 3 | who);
        if (pick(&w, 8) == 0) {
            put(&w, &other, 1);
            greeted[who] = greeted[who] && other >> 3 > 1;
        }
        put_message(&w, who, d, d == &dialect_d3 && !greeted[who]);
        greeted[who] = true;
    }
    return w.size;
}
