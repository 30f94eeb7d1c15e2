/* launcher/link/frame.h - the framing of messages on a link, and all message types
 *
 * A frame is a header of eight bytes and a body. Numbers are big-endian.
 *
 *     0        4      5      6        8
 *     | size   | type | 0    | node   | body: `size` bytes
 *
 * `node` is the source on the way up, and the destination on the way down (NODE_ALL:
 * all). An inner agent of the tree forwards frames by this number and does not read
 * bodies that are not its own. messages.def has the bodies.
 */
#ifndef LAUNCHER_LINK_FRAME_H
#define LAUNCHER_LINK_FRAME_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FRAME_HEAD = 8, NODE_ALL = 0xffff, NODES_MAX = 0xfffe };

/* the largest piece of a rank's output or input in one frame */
enum { PIECE_MAX = 64 * 1024 };

/* the most that one fence may collect: 16 KiB from each of 4,096 ranks */
enum { FENCE_MAX = 64 << 20 };

/* connections that one message asks about */
enum { VOUCH_MAX = 512 };

/* launcher/link/messages.def has what each of them is for and its fields; MSG_TYPE_hello
 * is the same as MSG_HELLO. */
enum msg_type {
    MSG_NONE,
#define MESSAGE(TYPE, name, way, max, merge) MSG_##TYPE, MSG_TYPE_##name = MSG_##TYPE,
#include "launcher/link/messages.def"
    MSG_TYPES
};

const char *msg_name(enum msg_type type); /* "hello"; "?" for anything else */

/* What a relay does with frames of a type (messages.def). */
enum msg_merge {
    MERGE_PASS,
    MERGE_AFTER,
    MERGE_SAME,
    MERGE_LIST,
    MERGE_EMPTY,
    MERGE_FENCE
};
enum msg_merge msg_merge(enum msg_type type);

struct frame {
    enum msg_type type;
    unsigned node;
    const uint8_t *body; /* borrowed: valid until the handler returns */
    size_t size;
    void *m; /* the body decoded, struct msg_NAME of its type: only in handlers */
};

/* Direction of a frame: most types are valid in one direction only. */
enum frame_way { FRAME_UP = 1, FRAME_DOWN = 2, FRAME_BOTH = 3 };

/* Write the header of a frame. */
void frame_head(uint8_t head[FRAME_HEAD], enum msg_type type, unsigned node, size_t size);

/* Parse one frame at the front of `data`. Returns its size (header and body), 0 when more
 * bytes are needed, -1 with `err` when it is not a valid frame of that direction. A size
 * over the limit of its type is refused before the body has arrived. */
long frame_parse(const uint8_t *data, size_t size, enum frame_way way, struct frame *f,
                 struct ddp_err *err);

/* Serializing a body: grows; freed by pack_finish(). */
struct pack {
    uint8_t *p; /* owned */
    size_t n, room;
};
void pack_u8(struct pack *k, unsigned v);
void pack_u16(struct pack *k, unsigned v);
void pack_u32(struct pack *k, uint32_t v);
void pack_u64(struct pack *k, uint64_t v);
void pack_bytes(struct pack *k, const void *p, size_t n); /* without a length */
void pack_str(struct pack *k, const char *s);             /* u32 length; NULL: ~0 */
/* As pack_str(), at most `max` bytes, for texts of unknown length. */
void pack_text(struct pack *k, const char *s, size_t max);
void pack_strs(struct pack *k, char *const *v, size_t n); /* u32 count, then each */
void pack_finish(struct pack *k);

/* Parsing a body. A missing field makes the whole body invalid: the getters return zeros
 * and `bad` stays set, so a decoder checks once at its end. */
struct unpack {
    const uint8_t *p;
    size_t n;
    bool bad;
};
unsigned unpack_u8(struct unpack *u);
unsigned unpack_u16(struct unpack *u);
uint32_t unpack_u32(struct unpack *u);
uint64_t unpack_u64(struct unpack *u);
const uint8_t *unpack_bytes(struct unpack *u, size_t n); /* borrowed from the body */
char *unpack_str(struct unpack *u); /* malloc'ed; NULL for NULL and for failure */

struct strv;
void unpack_strs(struct unpack *u, struct strv *out);
/* 0 when all fields were present and nothing is left, else -1. */
int unpack_end(const struct unpack *u, enum msg_type type, struct ddp_err *err);

#endif
