/* launcher/link/message.h - the bodies of frames, as structs
 *
 * messages.def has one row per message; here it becomes struct msg_NAME with typed
 * functions msg_NAME_unpack() and so on, all of which read the row at run time.
 */
#ifndef LAUNCHER_LINK_MESSAGE_H
#define LAUNCHER_LINK_MESSAGE_H

#include "common/strv.h"
#include "launcher/link/frame.h"

#include <sys/socket.h>

/* Tests set another value: an agent of a future version. */
#ifndef LINK_PROTOCOL_IS
#define LINK_PROTOCOL_IS 1
#endif
enum { LINK_PROTOCOL = LINK_PROTOCOL_IS };

/* Bytes of output that an agent may send before it gets CREDIT, at most and at least, and
 * of all agents together as long as each has the least; bytes of input. */
enum {
    OUTPUT_CREDIT = 512 << 10,
    OUTPUT_CREDIT_LEAST = 4 << 10,
    OUTPUT_CREDIT_JOB = 64 << 20,
    INPUT_CREDIT = 256 << 10
};
uint32_t output_credit(uint32_t nnodes); /* for each of so many nodes */

/* The service of a fence or peer message: each has its own numbers and keys. */
enum msg_service { SERVICE_PMIX, SERVICE_PMI };

/* The state of a rank in its PMIx server. Down it is a query, answered with the same rank
 * and MEMBER_ASKED after all earlier events. An agent tells the launcher of its first
 * rank that enters MPI by any service (JOINED), that none is in MPI any more (LEFT), of
 * one that exited with 0 without entering it (ABSENT), and of the last one that enters it
 * for the first time (ALL). */
enum member_state { MEMBER_JOINED, MEMBER_LEFT, MEMBER_ASKED, MEMBER_ABSENT, MEMBER_ALL };

enum { FINDING_END = 0xffff };

/* What the launcher wants to know of ranks: for a hang report; whether one is due; for
 * --stragglers, of all ranks and of one; for a page. */
enum ask_what { ASK_REPORT, ASK_BRIEF, ASK_ARRIVALS, ASK_BESIDE, ASK_CALLS };

/* What a connection of a rank to Horovod's key-value server does. */
enum forward_what { FORWARD_OPEN, FORWARD_DATA, FORWARD_CLOSE };

#define MESSAGE(TYPE, name, way, max, merge) struct msg_##name {
#define RECORD(name)                         struct name {
#define FIELD(kind, type, name, min, max)    type name;
#define COUNTED(kind, type, name, count, min, max, record) \
    type *name;                                            \
    uint32_t count;
#define END(name) \
    }             \
    ;
#include "launcher/link/messages.def"

/* Room for any message. */
union msg_any {
#define MESSAGE(TYPE, name, way, max, merge) struct msg_##name name;
#include "launcher/link/messages.def"
};

/* `m` is the struct of the type. */
void msg_pack(enum msg_type type, const void *m, struct pack *k);
/* The same without the bytes of a REST field, which are returned: they need no copy. */
const void *msg_pack_head(enum msg_type type, const void *m, struct pack *k,
                          size_t *nrest);
/* Fills `m`, or fails as a whole: then it is zeroed, and nothing is left allocated. */
int msg_unpack(const struct frame *f, void *m, struct ddp_err *err);
void msg_finish(enum msg_type type, void *m);

/* Decode a frame's body into `m` and return the frame with that, for a handler; then call
 * msg_finish(). What a handler takes out of it, it replaces by NULL. */
int msg_decode(struct frame *f, union msg_any *m, struct ddp_err *err);

#define MESSAGE(TYPE, name, way, max, merge)                                           \
    static inline void msg_##name##_pack(const struct msg_##name *m, struct pack *k)   \
    {                                                                                  \
        msg_pack(MSG_##TYPE, m, k);                                                    \
    }                                                                                  \
    static inline int msg_##name##_unpack(const struct frame *f, struct msg_##name *m, \
                                          struct ddp_err *err)                         \
    {                                                                                  \
        return msg_unpack(f, m, err);                                                  \
    }                                                                                  \
    static inline void msg_##name##_finish(struct msg_##name *m)                       \
    {                                                                                  \
        msg_finish(MSG_##TYPE, m);                                                     \
    }
#include "launcher/link/messages.def"

/* A message in a call of a function that sends it: job_send(j, node, MSG(credit, n)). */
#define MSG(name, ...)                          \
    MSG_TYPE_##name, &(const struct msg_##name) \
    {                                           \
        __VA_ARGS__                             \
    }

/* A text of a message that is only sent: it is not freed. */
static inline char *msg_text(const char *text)
{
    return (union {
               const char *borrowed;
               char *text;
           }){text}
        .text;
}

/* Take a text out of a message. */
static inline char *msg_take(char **text)
{
    char *taken = *text;
    *text = NULL;
    return taken;
}

#endif
