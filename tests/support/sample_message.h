/* tests/support/sample_message.h - a message of each type, every field set
 *
 * Made from messages.def, so that no row is forgotten.
 */
#ifndef TESTS_SUPPORT_SAMPLE_MESSAGE_H
#define TESTS_SUPPORT_SAMPLE_MESSAGE_H

#include "common/mem.h"
#include "launcher/link/message.h"

#include <netinet/in.h>
#include <string.h>

#define SET_BOOL(name, min, max)     m->name = true;
#define SET_U8(name, min, max)       m->name = (max);
#define SET_U32(name, min, max)      m->name = (max);
#define SET_PROTOCOL(name, min, max) m->name = LINK_PROTOCOL;
#define SET_I32(name, min, max)      m->name = -3;
#define SET_I64(name, min, max)      m->name = INT64_MIN;
#define SET_U64(name, min, max)      m->name = UINT64_MAX;
#define SET_TEXT(name, min, max)     m->name = xstrdup(#name);
#define SET_LIST(name, min, max) \
    strv_push(&m->name, #name);  \
    strv_push(&m->name, "");
#define SET_ADDRESS(name, min, max)                           \
    *(struct sockaddr_in6 *)&m->name = (struct sockaddr_in6){ \
        .sin6_family = AF_INET6, .sin6_port = htons(80), .sin6_addr = in6addr_loopback};
#define SET_BYTES(name, count, record) \
    m->name = (const uint8_t *)#name;  \
    m->count = sizeof #name;
#define SET_REST SET_BYTES
#define SET_NUMBERS(name, count, record)   \
    m->name = xcalloc(2, sizeof *m->name); \
    m->name[1] = 5;                        \
    m->count = 2;
#define SET_RECORDS(name, count, record)   \
    m->name = xcalloc(2, sizeof *m->name); \
    m->count = 2;                          \
    for (int i = 0; i < 2; i++)            \
        record(&m->name[i]);

#define CLIPPED_MAX 4000
#define MESSAGE(TYPE, name, way, max, merge)        \
    static void fields_##name(struct msg_##name *m) \
    {
#define RECORD(name)                          \
    static void fields_##name(struct name *m) \
    {
#define FIELD(kind, type, name, min, max)                  SET_##kind(name, min, max)
#define COUNTED(kind, type, name, count, min, max, record) SET_##kind(name, count, record)
#define END(name)                                          }
#include "launcher/link/messages.def"
#undef CLIPPED_MAX

/* To be freed by msg_finish(). */
static inline void sample_message(enum msg_type type, union msg_any *m)
{
    memset(m, 0, sizeof *m);
    switch (type) {
#define MESSAGE(TYPE, name, way, max, merge) \
    case MSG_##TYPE:                         \
        fields_##name(&m->name);             \
        break;
#include "launcher/link/messages.def"
    case MSG_NONE:
    case MSG_TYPES:
        break;
    }
}

/* The directions that a type is sent in. */
static inline enum frame_way sample_way(enum msg_type type)
{
    static const enum frame_way ways[] = {
        0,
#define MESSAGE(TYPE, name, way, max, merge) way,
#include "launcher/link/messages.def"
    };
    return ways[type];
}

#endif
