/* launcher/link/frame.h - the framing of messages on a link, and all message types
 *
 * A frame is a header of eight bytes and a body. Numbers are big-endian.
 *
 *     0        4      5      6        8
 *     | size   | type | 0    | node   | body: `size` bytes
 *
 * `node` is the source on the way up, and the destination on the way down (NODE_ALL:
 * all). An inner agent of the tree forwards frames by this number and does not read
 * bodies that are not its own. doc/agent.md describes the bodies.
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

enum msg_type {
    MSG_HELLO = 1, /* up: an agent's version, CPUs, GPUs, addresses */
    MSG_HOSTS,     /* down: all hosts; start your children in the tree */
    MSG_UNREACHED, /* up: a host below failed to start */
    MSG_STORE,     /* down: bind the store's port */
    MSG_READY,     /* up: the store's address and port */
    MSG_JOB,       /* down: common to all nodes: program, environment, store */
    MSG_SHARE,     /* down: this node's ranks; start them */
    MSG_SPAWNED,   /* up: all ranks run */
    MSG_CANNOT,    /* up: a rank cannot be started, and why */
    MSG_OUT,       /* up: output of a rank; empty: EOF */
    MSG_INPUT,     /* down: input for stdin; empty: EOF */
    MSG_CREDIT,    /* both: permission to send so many more bytes */
    MSG_EXIT,      /* up: a rank has ended */
    MSG_SIGNAL,    /* down: a signal for every rank */
    MSG_END,       /* down: terminate all ranks */
    MSG_ENDED,     /* up: no rank runs any more, all output is sent */
    MSG_LEAVE,     /* down: the agent exits */
    MSG_PING,      /* down: heartbeat */
    MSG_PONG,      /* up: its reply, with the node's clock */
    MSG_VOUCH,     /* both: does this connection belong to your ranks? */
    MSG_VOUCHED,   /* both: its reply: yes, or no and why */
    MSG_LOST,      /* up: a node below is lost */
    MSG_LOG,       /* up: a line of the agent's log */
    MSG_ERROR,     /* up: the error text of a failed rank; before its EXIT */
    MSG_PROBE,     /* down: run checks (--preflight) */
    MSG_FOUND,     /* up: a result; the last one is marked */
    MSG_TOLD,      /* up: an external signal asks this agent to shut down */
    MSG_FENCE,     /* both: a node's contribution to a fence; all contributions */
    MSG_PEER,      /* both: from one node's agent to another's */
    MSG_ABORT,     /* up: a rank aborts the job, as by MPI_Abort */
    MSG_SERVE,     /* down, an agent to its PMIx server: the ranks to serve */
    MSG_MEMBER,    /* both, agent and PMIx server: a rank has joined PMIx, or left it */
    MSG_SAVED,     /* up: time and memory saved by forking ranks */
    MSG_AGAIN,     /* down: restart the ranks, after ENDED */
    MSG_TYPES
};

const char *msg_name(enum msg_type type); /* "hello"; "?" for anything else */

struct frame {
    enum msg_type type;
    unsigned node;
    const uint8_t *body; /* borrowed: valid until the handler returns */
    size_t size;
};

/* Direction of a frame: most types are valid in one direction only. */
enum frame_way { FRAME_UP = 1, FRAME_DOWN = 2 };

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
