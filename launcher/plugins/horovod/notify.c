/* launcher/plugins/horovod/notify.c - see notify.h */
#include "launcher/plugins/horovod/notify.h"

#include "common/mem.h"

#include <sodium.h>
#include <stdlib.h>
#include <string.h>

/* Of a pickle: what follows these operations. `size` bytes are a number: of the bytes
 * that follow it, if it `counts`, else the value. All other operations are refused. */
static const struct operation {
    unsigned char code, size;
    bool counts;
} operations[] = {
    {'\x80', 1, false}, /* PROTO */
    {'\x95', 8, false}, /* FRAME */
    {'\x94', 0, false}, /* MEMOIZE */
    {'h', 1, false},    /* BINGET */
    {'j', 4, false},    /* LONG_BINGET */
    {'}', 0, false},    /* EMPTY_DICT */
    {']', 0, false},    /* EMPTY_LIST */
    {'(', 0, false},    /* MARK */
    {'\x86', 0, false}, /* TUPLE2 */
    {'a', 0, false},    /* APPEND */
    {'e', 0, false},    /* APPENDS */
    {'s', 0, false},    /* SETITEM */
    {'u', 0, false},    /* SETITEMS */
    {'\x8c', 1, true},  /* SHORT_BINUNICODE: interfaces and addresses */
    {'M', 2, false},    /* BININT2: the port, the same for all addresses */
    {'C', 1, true},     /* SHORT_BINBYTES: the key */
    {'.', 0, false},    /* STOP */
};

static const struct operation *find(unsigned char code)
{
    for (size_t i = 0; i < ARRAY_LEN(operations); i++) {
        if (operations[i].code == code)
            return &operations[i];
    }
    return NULL;
}

static uint64_t number(const unsigned char *p, size_t size)
{
    uint64_t n = 0;
    while (size-- > 0)
        n = n << 8 | p[size];
    return n;
}

static bool read_pickle(const unsigned char *p, size_t n, struct notify_service *s)
{
    bool keyed = false;
    for (size_t at = 0; at < n;) {
        const struct operation *op = find(p[at++]);
        if (!op || n - at < op->size)
            return false;
        uint64_t value = number(p + at, op->size);
        at += op->size;
        if (op->counts && n - at < value)
            return false;
        if (op->code == 'M')
            s->port = (uint32_t)value;
        if (op->code == 'C' && value == NOTIFY_KEY) {
            memcpy(s->key, p + at, NOTIFY_KEY);
            keyed = true;
        }
        at += op->counts ? value : 0;
        if (op->code == '.')
            return keyed && s->port > 0;
    }
    return false;
}

bool notify_read(const char *base64, struct notify_service *s)
{
    size_t most = strlen(base64), n;
    OWNED unsigned char *pickle = xcalloc(most + 1, 1);
    *s = (struct notify_service){0};
    bool good = sodium_base642bin(pickle, most, base64, most, NULL, &n, NULL,
                                  sodium_base64_VARIANT_ORIGINAL) == 0 &&
                read_pickle(pickle, n, s);
    if (!good)
        *s = (struct notify_service){0};
    return good;
}

/* HostsUpdatedRequest(TIME, HostUpdateResult(3)), by protocol 2. After 3, "added and
 * removed", ranks copy the state of rank 0 again, which a new one among them needs. */
static const char head[] = "\x80\x02"
                           "chorovod.runner.elastic.worker\nHostsUpdatedRequest\n"
                           ")\x81}(X\x09\0\0\0timestampJ",
                  tail[] = "X\x03\0\0\0res"
                           "chorovod.runner.elastic.worker\nHostUpdateResult\n"
                           "K\x03\x85Rub.";

size_t notify_request(const struct notify_service *s, uint32_t time_s,
                      unsigned char request[NOTIFY_MOST])
{
    unsigned char *body = request + crypto_auth_hmacsha256_BYTES + sizeof(int32_t);
    unsigned char *p = mempcpy(body, head, sizeof head - 1);
    p = mempcpy(p, &time_s, sizeof time_s);
    p = mempcpy(p, tail, sizeof tail - 1);
    int32_t size = (int32_t)(p - body);
    crypto_auth_hmacsha256(request, body, (unsigned long long)size, s->key);
    memcpy(request + crypto_auth_hmacsha256_BYTES, &size, sizeof size);
    return (size_t)(p - request);
}
