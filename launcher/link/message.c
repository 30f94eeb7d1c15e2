/* launcher/link/message.c - see message.h
 *
 * Each row of messages.def is a table of fields here: where a field is in the struct, and
 * its kind, which is how it is written. Every function walks that table.
 */
#include "launcher/link/message.h"

#include "common/err.h"
#include "common/mem.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

/* The text of a program in a frame of 4 KiB. */
enum { CLIPPED_MAX = 4000 };

enum kind {
    END_OF_FIELDS,
    BOOL,
    U8,
    U32,
    PROTOCOL = U32,
    I32 = U32,
    U64,
    I64 = U64,
    TEXT,
    LIST,
    ADDRESS,
    BYTES,
    REST,
    NUMBERS,
    RECORDS
};

/* The fewest bytes that a field takes: a count that needs more than there are is refused
 * before memory is allocated for it. */
static const uint8_t least[] = {
    [BOOL] = 1,    [U8] = 1,    [U32] = 4,  [U64] = 8,     [TEXT] = 4,    [LIST] = 4,
    [ADDRESS] = 7, [BYTES] = 4, [REST] = 0, [NUMBERS] = 4, [RECORDS] = 4,
};

struct field {
    enum kind kind;
    size_t at, count_at; /* offsets in the struct */
    uint32_t min, max;   /* of a number or a count; a text: required, clipped to */
    size_t size;         /* of an element of RECORDS */
    const struct field *(*record)(void);
};

#define MESSAGE(TYPE, name, way, max, merge)       \
    static const struct field *fields_##name(void) \
    {                                              \
        typedef struct msg_##name self;            \
        static const struct field fields[] = {
#define RECORD(name)                               \
    static const struct field *fields_##name(void) \
    {                                              \
        typedef struct name self;                  \
        static const struct field fields[] = {
#define FIELD(kind, type, name, min, max) \
    {kind, offsetof(self, name), 0, min, max, 0, NULL},
#define COUNTED(kind, type, name, count, min, max, record) \
    {kind, offsetof(self, name), offsetof(self, count), min, max, sizeof(type), record},
#define END(name)       \
    {                   \
        END_OF_FIELDS   \
    }                   \
    }                   \
    ;                   \
    (void)sizeof(self); \
    return fields;      \
    }
#include "launcher/link/messages.def"

static const struct {
    const struct field *(*fields)(void);
    size_t size;
} rows[MSG_TYPES] = {
#define MESSAGE(TYPE, name, way, max, merge) \
    [MSG_##TYPE] = {fields_##name, sizeof(struct msg_##name)},
#include "launcher/link/messages.def"
};

uint32_t output_credit(uint32_t nnodes)
{
    uint32_t share = OUTPUT_CREDIT_JOB / (nnodes ? nnodes : 1);
    share = share < OUTPUT_CREDIT ? share : OUTPUT_CREDIT;
    return share > OUTPUT_CREDIT_LEAST ? share : OUTPUT_CREDIT_LEAST;
}

static const void *at(const void *m, size_t offset)
{
    return (const char *)m + offset;
}

static void *into(void *m, size_t offset)
{
    return (char *)m + offset;
}

/* The kinds that are a pointer and a number are read through these. */
static const void *array_of(const struct field *f, const void *m, uint32_t *n)
{
    *n = *(const uint32_t *)at(m, f->count_at);
    return *(const void *const *)at(m, f->at);
}

/* --- addresses: family (4 or 6), port, then 4 or 16 bytes --------------------------- */

static void pack_address(struct pack *k, const struct sockaddr_storage *ss)
{
    if (ss->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const void *)ss;
        pack_u8(k, 4);
        pack_u16(k, ntohs(in->sin_port));
        pack_bytes(k, &in->sin_addr, 4);
    } else {
        const struct sockaddr_in6 *in6 = (const void *)ss;
        pack_u8(k, 6);
        pack_u16(k, ntohs(in6->sin6_port));
        pack_bytes(k, &in6->sin6_addr, 16);
    }
}

static void unpack_address(struct unpack *u, struct sockaddr_storage *ss)
{
    unsigned family = unpack_u8(u), port = unpack_u16(u);
    const uint8_t *addr = unpack_bytes(u, family == 4 ? 4 : 16);
    u->bad |= family != 4 && family != 6;
    if (u->bad)
        return;
    if (family == 4) {
        struct sockaddr_in *in = (void *)ss;
        in->sin_family = AF_INET;
        in->sin_port = htons((uint16_t)port);
        memcpy(&in->sin_addr, addr, 4);
    } else {
        struct sockaddr_in6 *in6 = (void *)ss;
        in6->sin6_family = AF_INET6;
        in6->sin6_port = htons((uint16_t)port);
        memcpy(&in6->sin6_addr, addr, 16);
    }
}

/* --- pack --------------------------------------------------------------------------- */

static void pack_fields(const struct field *f, const void *m, struct pack *k);

static void pack_array(const struct field *f, const void *m, struct pack *k)
{
    uint32_t n;
    const char *p = array_of(f, m, &n);
    pack_u32(k, n);
    if (f->kind == BYTES)
        pack_bytes(k, p, n);
    for (uint32_t i = 0; f->kind == NUMBERS && i < n; i++)
        pack_u32(k, ((const uint32_t *)(const void *)p)[i]);
    for (uint32_t i = 0; f->kind == RECORDS && i < n; i++)
        pack_fields(f->record(), p + i * f->size, k);
}

static void pack_field(const struct field *f, const void *m, struct pack *k)
{
    const void *p = at(m, f->at);
    const struct strv *list = p;
    switch (f->kind) {
    case BOOL:
        pack_u8(k, *(const bool *)p);
        break;
    case U8:
        pack_u8(k, *(const uint32_t *)p);
        break;
    case U32:
        pack_u32(k, *(const uint32_t *)p);
        break;
    case U64:
        pack_u64(k, *(const uint64_t *)p);
        break;
    case TEXT:
        if (f->max > 0 && *(char *const *)p)
            pack_text(k, *(char *const *)p, f->max);
        else
            pack_str(k, *(char *const *)p);
        break;
    case LIST:
        pack_strs(k, list->v, list->n);
        break;
    case ADDRESS:
        pack_address(k, p);
        break;
    case BYTES:
    case NUMBERS:
    case RECORDS:
        pack_array(f, m, k);
        break;
    case REST:
    case END_OF_FIELDS:
        break;
    }
}

static void pack_fields(const struct field *f, const void *m, struct pack *k)
{
    for (; f->kind != END_OF_FIELDS; f++)
        pack_field(f, m, k);
}

const void *msg_pack_head(enum msg_type type, const void *m, struct pack *k,
                          size_t *nrest)
{
    uint32_t n = 0;
    const void *rest = NULL;
    pack_fields(rows[type].fields(), m, k);
    for (const struct field *f = rows[type].fields(); f->kind != END_OF_FIELDS; f++) {
        if (f->kind == REST)
            rest = array_of(f, m, &n);
    }
    *nrest = n;
    return rest;
}

void msg_pack(enum msg_type type, const void *m, struct pack *k)
{
    size_t n;
    const void *rest = msg_pack_head(type, m, k, &n);
    pack_bytes(k, rest, n);
}

/* --- unpack ------------------------------------------------------------------------- */

static void unpack_fields(const struct field *f, void *m, struct unpack *u);

static size_t least_of(const struct field *f)
{
    size_t n = 0;
    for (; f->kind != END_OF_FIELDS; f++)
        n += least[f->kind];
    return n;
}

static void unpack_array(const struct field *f, void *m, struct unpack *u)
{
    uint32_t n = f->kind == REST ? (uint32_t)u->n : unpack_u32(u);
    size_t each = f->kind == NUMBERS ? 4 : f->kind == RECORDS ? least_of(f->record()) : 1;
    u->bad |= n < f->min || n > f->max || n > u->n / each;
    if (u->bad)
        return;
    *(uint32_t *)into(m, f->count_at) = n;
    if (f->kind == BYTES || f->kind == REST) {
        *(const uint8_t **)into(m, f->at) = unpack_bytes(u, n);
        return;
    }
    char *array = n > 0 ? xcalloc(n, f->size) : NULL;
    *(void **)into(m, f->at) = array;
    for (uint32_t i = 0; f->kind == NUMBERS && i < n; i++)
        ((uint32_t *)(void *)array)[i] = unpack_u32(u);
    for (uint32_t i = 0; f->kind == RECORDS && i < n; i++)
        unpack_fields(f->record(), array + i * f->size, u);
}

static void unpack_number(const struct field *f, uint32_t v, void *p, struct unpack *u)
{
    u->bad |= v < f->min || v > f->max;
    if (f->kind == BOOL)
        *(bool *)p = v != 0;
    else
        *(uint32_t *)p = v;
}

static void unpack_field(const struct field *f, void *m, struct unpack *u)
{
    void *p = into(m, f->at);
    struct strv *list = p;
    switch (f->kind) {
    case BOOL:
    case U8:
        unpack_number(f, unpack_u8(u), p, u);
        break;
    case U32:
        unpack_number(f, unpack_u32(u), p, u);
        break;
    case U64:
        *(uint64_t *)p = unpack_u64(u);
        break;
    case TEXT:
        *(char **)p = unpack_str(u);
        u->bad |= f->min > 0 && !*(char **)p;
        u->bad |= f->max > 0 && *(char **)p && strlen(*(char **)p) > f->max;
        break;
    case LIST:
        unpack_strs(u, list);
        u->bad |= list->n < f->min;
        break;
    case ADDRESS:
        unpack_address(u, p);
        break;
    case BYTES:
    case REST:
    case NUMBERS:
    case RECORDS:
        unpack_array(f, m, u);
        break;
    case END_OF_FIELDS:
        break;
    }
}

static void unpack_fields(const struct field *f, void *m, struct unpack *u)
{
    for (; f->kind != END_OF_FIELDS && !u->bad; f++)
        unpack_field(f, m, u);
}

/* An agent of another version may send anything after these two fields. */
static int check_protocol(const struct frame *f, struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    uint32_t protocol = unpack_u32(&u);
    char *version = unpack_str(&u);
    int rc = 0;
    if (!u.bad && protocol != LINK_PROTOCOL)
        rc = err_set(err, "its version %s speaks protocol %u, this one %d",
                     version ? version : "?", protocol, LINK_PROTOCOL);
    free(version);
    return rc;
}

int msg_unpack(const struct frame *f, void *m, struct ddp_err *err)
{
    struct unpack u = {.p = f->body, .n = f->size};
    memset(m, 0, rows[f->type].size);
    if (f->type == MSG_HELLO && check_protocol(f, err) < 0)
        return -1;
    unpack_fields(rows[f->type].fields(), m, &u);
    if (unpack_end(&u, f->type, err) == 0)
        return 0;
    msg_finish(f->type, m);
    return -1;
}

int msg_decode(struct frame *f, union msg_any *m, struct ddp_err *err)
{
    f->m = m;
    return msg_unpack(f, m, err);
}

/* --- finish ------------------------------------------------------------------------- */

static void finish_fields(const struct field *f, void *m)
{
    for (; f->kind != END_OF_FIELDS; f++) {
        uint32_t n;
        if (f->kind == TEXT)
            free(*(char **)into(m, f->at));
        else if (f->kind == LIST)
            strv_finish(into(m, f->at));
        if (f->kind != NUMBERS && f->kind != RECORDS)
            continue;
        array_of(f, m, &n);
        char *array = *(char **)into(m, f->at);
        for (uint32_t i = 0; f->kind == RECORDS && array && i < n; i++)
            finish_fields(f->record(), array + i * f->size);
        free(array);
    }
}

void msg_finish(enum msg_type type, void *m)
{
    finish_fields(rows[type].fields(), m);
    memset(m, 0, rows[type].size);
}
