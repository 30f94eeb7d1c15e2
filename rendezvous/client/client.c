/* rendezvous/client/client.c - the calls of store.h that never wait for other ranks
 *
 * Each is one request and one reply. SET, APPEND, MULTI_SET and QUEUE_PUSH have no reply
 * in the protocol: they return when the kernel has taken the bytes; the next call
 * reports a failure. Calls that wait are in wait.c.
 */
#include "rendezvous/client/client.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/number.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DEFAULT_TIMEOUT_MS (5 * 60 * 1000)
#define LONGEST_MS         (INT64_MAX / 2) /* a time can be added */
#define FIRST_ROOM         ((size_t)1 << 20)
#define CHUNK_BYTES        (8u << 20) /* of keys and values in one request, about */

/* A key that is never set: those of users begin with "/". */
static const char no_key[] = "in-order?";

int store_begin(struct ddp_store *s, struct ddp_err *err)
{
    s->x.deadline = now_ms() + s->timeout_ms;
    return exchange_begin(&s->x, err);
}

int store_ask(struct ddp_store *s, struct ddp_err *err)
{
    if (exchange_send(&s->x, err) < 0)
        return -1;
    int ready = exchange_poll(&s->x, err);
    return ready ? (ready > 0 ? 0 : -1)
                 : exchange_break(&s->x, err, "did not answer in time");
}

int store_read_u8(struct ddp_store *s, unsigned char *v, struct ddp_err *err)
{
    return exchange_read(&s->x, v, 1, err);
}

int store_read_i64(struct ddp_store *s, int64_t *v, struct ddp_err *err)
{
    unsigned char bytes[8];
    if (exchange_read(&s->x, bytes, sizeof bytes, err) < 0)
        return -1;
    *v = (int64_t)wire_read_u64(bytes);
    return 0;
}

/* Memory grows with the bytes that arrived, not with the announced size. */
int store_read_value(struct ddp_store *s, struct ddp_value *value, struct ddp_err *err)
{
    unsigned char bytes[8];
    if (exchange_read(&s->x, bytes, sizeof bytes, err) < 0)
        return -1;
    uint64_t size = wire_read_u64(bytes);
    size_t have = 0, room = 0;
    char *data = NULL;
    do {
        room = room * 2 < FIRST_ROOM ? FIRST_ROOM : room * 2;
        room = size < room ? (size_t)size : room;
        char *more = realloc(data, room + 1);
        if (!more || exchange_read(&s->x, more + have, room - have, err) < 0) {
            free(more ? more : data);
            return more ? -1
                        : exchange_break(&s->x, err, "sent more than fits in memory");
        }
        data = more;
        have = room;
    } while (have < size);
    data[have] = '\0';
    *value = (struct ddp_value){.data = data, .size = have};
    return 0;
}

int store_check_key(const char *key, struct ddp_err *err)
{
    size_t n = strlen(key);
    if (n < WIRE_KEY_MAX)
        return 0;
    return err_set(err, "key '%.32s...' has %zu bytes, the store takes %d", key, n,
                   WIRE_KEY_MAX - 1);
}

int store_check_value(const char *key, size_t size, struct ddp_err *err)
{
    if (store_check_key(key, err) < 0)
        return -1;
    if (size <= WIRE_VALUE_MAX)
        return 0;
    return err_set(err, "value of '%.64s' has %zu bytes, the store takes %d", key, size,
                   WIRE_VALUE_MAX);
}

int store_check_keys(const char *const *keys, size_t nkeys, struct ddp_err *err)
{
    for (size_t i = 0; i < nkeys; i++) {
        if (store_check_key(keys[i], err) < 0)
            return -1;
    }
    return 0;
}

size_t store_chunk(const char *const *keys, size_t from, size_t nkeys)
{
    size_t n = 0, bytes = 0;
    while (from + n < nkeys && n < WIRE_LIST_MAX && bytes < CHUNK_BYTES)
        bytes += strlen(keys[from + n++]) + 9;
    return n;
}

void store_put_keys(struct ddp_store *s, enum wire_op op, const char *const *keys,
                    size_t nkeys)
{
    wire_op(&s->x.out, op);
    wire_u64(&s->x.out, nkeys);
    for (size_t i = 0; i < nkeys; i++)
        wire_key(&s->x.out, keys[i]);
}

/* The handshake of PyTorch's client, without the PING that servers before 2.5 do not
 * know. It also detects whether the server answers in order: a WAIT that cannot end, a
 * CHECK that can be answered at once, and CANCEL_WAIT. In order the cancel's 1 comes
 * first, else the CHECK's 0. */
static int handshake(struct ddp_store *s, struct ddp_err *err)
{
    struct wire *out = &s->x.out;
    unsigned char reply[2];

    wire_clear(out);
    wire_op(out, WIRE_VALIDATE);
    wire_u32(out, WIRE_MAGIC);
    wire_op(out, WIRE_WAIT);
    wire_u64(out, 1);
    wire_str(out, no_key, sizeof no_key - 1);
    wire_op(out, WIRE_CHECK);
    wire_u64(out, 0);
    wire_op(out, WIRE_CANCEL_WAIT);
    if (store_ask(s, err) < 0 || exchange_read(&s->x, reply, sizeof reply, err) < 0)
        return -1;
    if (reply[0] + reply[1] != 1)
        return exchange_break(&s->x, err, "is not a TCPStore: wrong answer to a wait");
    s->in_order = s->queues = reply[0] == 1;
    return 0;
}

/* In a job of one rank ddprun leaves MASTER_PORT to the program, and its store has
 * another port: DDPRUN_STORE_PORT=PORT@MASTER_ADDR:MASTER_PORT. It counts only while
 * these two are the launcher's: the rank may have a store of its own elsewhere. */
static bool store_is_separate(const char *host, const char *master, int *port)
{
    const char *separate = getenv("DDPRUN_STORE_PORT");
    char text[320], of[320];
    if (!separate)
        return false;
    snprintf(text, sizeof text, "%s", separate);
    snprintf(of, sizeof of, "%s:%s", host, master);
    char *at = strchr(text, '@');
    if (!at || strcmp(at + 1, of) != 0)
        return false;
    *at = '\0';
    return number_whole(text, 1, 65535, port);
}

static int port_from_env(const char *host, int *port, struct ddp_err *err)
{
    const char *text = getenv("MASTER_PORT");
    if (!text || !*text)
        return err_set(err, "MASTER_PORT is not set: start this program with ddprun, "
                            "or set it to the store's port");
    return store_is_separate(host, text, port) || number_whole(text, 1, 65535, port)
               ? 0
               : err_set(err, "MASTER_PORT='%.32s' is not a port", text);
}

struct ddp_store *ddp_store_connect(const char *host, int port, int64_t timeout_ms,
                                    struct ddp_err *err)
{
    if (!host)
        host = getenv("MASTER_ADDR");
    if (!host || !*host) {
        err_set(err, "MASTER_ADDR is not set: start this program with ddprun, or set it "
                     "to the store's host");
        return NULL;
    }
    if (port == 0 && port_from_env(host, &port, err) < 0)
        return NULL;
    if (port < 1 || port > 65535) {
        err_set(err, "store: %d is not a port (1 to 65535)", port);
        return NULL;
    }
    struct ddp_store *s = xcalloc(1, sizeof *s);
    ddp_store_set_timeout(s, timeout_ms);
    s->x.deadline = now_ms() + s->timeout_ms;
    if (exchange_open(&s->x, host, port, err) == 0 && handshake(s, err) == 0)
        return s;
    if (s->x.hung_up)
        err_set(err,
                "store at %s does not let this process in: it closed the connection at "
                "once; its messages say why (it serves its own job only, unless started "
                "with --store-open; ddpstored: --open), or it is the store of a "
                "PyTorch before 2.5",
                s->x.peer);
    ddp_store_close(s);
    return NULL;
}

void ddp_store_close(struct ddp_store *s)
{
    if (s) {
        exchange_close(&s->x);
        free(s);
    }
}

void ddp_store_set_timeout(struct ddp_store *s, int64_t timeout_ms)
{
    s->timeout_ms = timeout_ms <= 0           ? DEFAULT_TIMEOUT_MS
                    : timeout_ms < LONGEST_MS ? timeout_ms
                                              : LONGEST_MS;
}

/* SET, APPEND and QUEUE_PUSH: a key, a value, no reply. */
static int tell(struct ddp_store *s, enum wire_op op, const char *key, const void *data,
                size_t size, struct ddp_err *err)
{
    if (store_check_value(key, size, err) < 0 || store_begin(s, err) < 0)
        return -1;
    wire_op(&s->x.out, op);
    wire_key(&s->x.out, key);
    wire_str(&s->x.out, data, size);
    return exchange_send(&s->x, err);
}

int ddp_store_set(struct ddp_store *s, const char *key, const void *data, size_t size,
                  struct ddp_err *err)
{
    return tell(s, WIRE_SET, key, data, size, err);
}

int ddp_store_append(struct ddp_store *s, const char *key, const void *data, size_t size,
                     struct ddp_err *err)
{
    return tell(s, WIRE_APPEND, key, data, size, err);
}

int ddp_store_queue_push(struct ddp_store *s, const char *key, const void *data,
                         size_t size, struct ddp_err *err)
{
    if (store_check_key(key, err) < 0 || store_check_queues(s, key, err) < 0)
        return -1;
    return tell(s, WIRE_QUEUE_PUSH, key, data, size, err);
}

/* A request whose reply is one number; `key` may be NULL. */
static int ask_number(struct ddp_store *s, enum wire_op op, const char *key,
                      int64_t *answer, struct ddp_err *err)
{
    if ((key && store_check_key(key, err) < 0) || store_begin(s, err) < 0)
        return -1;
    wire_op(&s->x.out, op);
    if (key)
        wire_key(&s->x.out, key);
    return store_ask(s, err) < 0 ? -1 : store_read_i64(s, answer, err);
}

int ddp_store_add(struct ddp_store *s, const char *key, int64_t delta, int64_t *result,
                  struct ddp_err *err)
{
    int64_t now;
    if (store_check_key(key, err) < 0 || store_begin(s, err) < 0)
        return -1;
    wire_op(&s->x.out, WIRE_ADD);
    wire_key(&s->x.out, key);
    wire_u64(&s->x.out, (uint64_t)delta);
    if (store_ask(s, err) < 0 || store_read_i64(s, &now, err) < 0)
        return -1;
    if (result)
        *result = now;
    return 0;
}

int ddp_store_delete(struct ddp_store *s, const char *key, int *existed,
                     struct ddp_err *err)
{
    int64_t n;
    if (ask_number(s, WIRE_DELETE_KEY, key, &n, err) < 0)
        return -1;
    if (existed)
        *existed = n > 0;
    return 0;
}

int ddp_store_num_keys(struct ddp_store *s, int64_t *n, struct ddp_err *err)
{
    return ask_number(s, WIRE_GETNUMKEYS, NULL, n, err);
}

int ddp_store_queue_len(struct ddp_store *s, const char *key, int64_t *n,
                        struct ddp_err *err)
{
    if (ask_number(s, WIRE_QUEUE_LEN, key, n, err) < 0)
        return s->x.hung_up && !s->queues
                   ? exchange_break(
                         &s->x, err,
                         "closed the connection when asked for a queue "
                         "(PyTorch's stores have queues since 2.8, with libuv)")
                   : -1;
    s->queues = true;
    return 0;
}

int store_check_queues(struct ddp_store *s, const char *key, struct ddp_err *err)
{
    int64_t n;
    return s->queues ? 0 : ddp_store_queue_len(s, key, &n, err);
}

int ddp_store_compare_set(struct ddp_store *s, const char *key, const void *expected,
                          size_t nexpected, const void *desired, size_t ndesired,
                          struct ddp_value *now, struct ddp_err *err)
{
    struct ddp_value answer;
    if (store_check_value(key, nexpected, err) < 0 ||
        store_check_value(key, ndesired, err) < 0 || store_begin(s, err) < 0)
        return -1;
    wire_op(&s->x.out, WIRE_COMPARE_SET);
    wire_key(&s->x.out, key);
    wire_str(&s->x.out, expected, nexpected);
    wire_str(&s->x.out, desired, ndesired);
    if (store_ask(s, err) < 0 || store_read_value(s, &answer, err) < 0)
        return -1;
    if (now)
        *now = answer;
    else
        free(answer.data);
    return 0;
}

int ddp_store_check(struct ddp_store *s, const char *const *keys, size_t nkeys,
                    int *all_present, struct ddp_err *err)
{
    if (store_check_keys(keys, nkeys, err) < 0 || store_begin(s, err) < 0)
        return -1;
    unsigned char missing = 0;
    for (size_t from = 0, n; from < nkeys && !missing; from += n) {
        n = store_chunk(keys, from, nkeys);
        if (exchange_begin(&s->x, err) < 0)
            return -1;
        store_put_keys(s, WIRE_CHECK, keys + from, n);
        if (store_ask(s, err) < 0 || store_read_u8(s, &missing, err) < 0)
            return -1;
    }
    *all_present = !missing;
    return 0;
}

int ddp_store_multi_set(struct ddp_store *s, const char *const *keys,
                        const struct ddp_value *values, size_t nkeys, struct ddp_err *err)
{
    for (size_t i = 0; i < nkeys; i++) {
        if (store_check_value(keys[i], values[i].size, err) < 0)
            return -1;
    }
    if (store_begin(s, err) < 0)
        return -1;
    for (size_t from = 0; from < nkeys;) {
        size_t n = 0;
        for (size_t bytes = 0;
             from + n < nkeys && n < WIRE_LIST_MAX && bytes < CHUNK_BYTES; n++)
            bytes += strlen(keys[from + n]) + values[from + n].size + 17;
        if (exchange_begin(&s->x, err) < 0)
            return -1;
        wire_op(&s->x.out, WIRE_MULTI_SET);
        wire_u64(&s->x.out, n);
        for (size_t i = from; i < from + n; i++) {
            wire_key(&s->x.out, keys[i]);
            wire_str(&s->x.out, values[i].data, values[i].size);
        }
        if (exchange_send(&s->x, err) < 0)
            return -1;
        from += n;
    }
    return 0;
}

void ddp_values_free(struct ddp_value *values, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        free(values[i].data);
        values[i] = (struct ddp_value){0};
    }
}
