/* launcher/link/frame.h - how a message lies on a link, and the table of all messages
 *
 * A frame is a head of eight bytes and a body. Numbers are big-endian.
 *
 *     0        4      5      6        8
 *     | size   | type | 0    | node   | body: `size` bytes
 *
 * `node` is the node a frame comes from on its way up, and the node it goes to on its way
 * down (NODE_ALL: every one). An agent in the middle of the tree passes frames on by this
 * number and never looks into a body that is not its own. doc/agent.md has the bodies.
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

/* the largest that a fence may collect: 16 KiB each of 4,096 ranks */
enum { FENCE_MAX = 64 << 20 };

enum msg_type {
    MSG_HELLO = 1, /* up: I am here: version, CPUs, GPUs, addresses */
    MSG_HOSTS,     /* down: all hosts; start those below you */
    MSG_UNREACHED, /* up: a host below me that does not start */
    MSG_STORE,     /* down: bind the store's port */
    MSG_READY,     /* up: it is bound: address and port */
    MSG_JOB,       /* down: what all nodes share: program, environment, store */
    MSG_SHARE,     /* down: your ranks; go */
    MSG_SPAWNED,   /* up: they all run */
    MSG_CANNOT,    /* up: one of them cannot be started, and why */
    MSG_OUT,       /* up: bytes of a rank; none: its stream has ended */
    MSG_INPUT,     /* down: bytes for stdin; none: its end */
    MSG_CREDIT,    /* both: so many more bytes may come */
    MSG_EXIT,      /* up: a rank has ended */
    MSG_SIGNAL,    /* down: pass on to every rank */
    MSG_END,       /* down: end whatever still runs */
    MSG_ENDED,     /* up: nothing runs here any more, all output is sent */
    MSG_LEAVE,     /* down: good bye */
    MSG_PING,      /* down: are you alive */
    MSG_PONG,      /* up: yes, and my clock says */
    MSG_VOUCH,     /* both: is this connection one of yours */
    MSG_VOUCHED,   /* both: yes, or no and why */
    MSG_LOST,      /* up: a node below me is gone */
    MSG_LOG,       /* up: a line of the agent's log */
    MSG_ERROR,     /* up: what a rank that has failed wrote of it; before its EXIT */
    MSG_PROBE,     /* down: look whether you are fit for the job (--preflight) */
    MSG_FOUND,     /* up: what was found; the last one says so */
    MSG_TOLD,      /* up: a signal from elsewhere tells this agent to end */
    MSG_FENCE,     /* both: what a node brings to a meeting; what all have brought */
    MSG_PEER,      /* both: from the agent of one node to that of another */
    MSG_ABORT,     /* up: a rank ends the job by itself, as by MPI_Abort */
    MSG_SERVE,     /* down, an agent to its PMIx server: whom to serve */
    MSG_MEMBER,    /* both, the same two: a rank has joined PMIx, or left it */
    MSG_SAVED,     /* up: what it has saved to fork ranks */
    MSG_AGAIN,     /* down: start your ranks again, after ENDED */
    MSG_TYPES
};

const char *msg_name(enum msg_type type); /* "hello"; "?" for anything else */

struct frame {
    enum msg_type type;
    unsigned node;
    const uint8_t *body; /* borrowed: valid only while it is handled */
    size_t size;
};

/* Which way a frame travels: each type is accepted from one side only (some from both).
 */
enum frame_way { FRAME_UP = 1, FRAME_DOWN = 2 };

/* Write the head of a frame. */
void frame_head(uint8_t head[FRAME_HEAD], enum msg_type type, unsigned node, size_t size);

/* Read one frame from the front of `data`. Returns the bytes it takes (head and body), 0
 * when more must come, -1 with `err` when this cannot be a frame that travels that way.
 * A size over the limit of its type is refused before the body is waited for. */
long frame_parse(const uint8_t *data, size_t size, enum frame_way way, struct frame *f,
                 struct ddp_err *err);

/* Building a body: grows; freed by pack_finish(). */
struct pack {
    uint8_t *p; /* owned */
    size_t n, room;
};
void pack_u8(struct pack *k, unsigned v);
void pack_u16(struct pack *k, unsigned v);
void pack_u32(struct pack *k, uint32_t v);
void pack_u64(struct pack *k, uint64_t v);
void pack_bytes(struct pack *k, const void *p, size_t n); /* bare: no length */
void pack_str(struct pack *k, const char *s);             /* u32 length; NULL: ~0 */
/* As pack_str(), of a text whose length is not ours to choose: at most `max` bytes. */
void pack_text(struct pack *k, const char *s, size_t max);
void pack_strs(struct pack *k, char *const *v, size_t n); /* u32 count, then each */
void pack_finish(struct pack *k);

/* Taking a body apart. A field that is not there fails the whole: the getters return
 * zeros and `bad` stays set, so a decoder asks once at its end. */
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
/* 0 when everything was there and nothing is left, else -1. */
int unpack_end(const struct unpack *u, enum msg_type type, struct ddp_err *err);

#endif
