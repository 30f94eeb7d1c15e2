/* launcher/link/merge.h - fewer frames on the way up the tree of agents
 *
 * Most messages that every node sends are equal on all nodes (SPAWNED, TERMINATED, ALIVE)
 * or of interest only when all of them have arrived (a fence). An agent with others below
 * it holds them for a moment, its own among them, and sends one MERGED frame. So the
 * launcher receives a number of frames that depends on the width of the tree, not on the
 * number of nodes. The rule of each type is in messages.def.
 *
 * Frames of a node arrive in the order in which it has sent them, but for types that are
 * forwarded at once.
 */
#ifndef LAUNCHER_LINK_MERGE_H
#define LAUNCHER_LINK_MERGE_H

#include "common/loop.h"
#include "launcher/link/message.h"

struct merge;

/* `send` gets the frames for the parent; `node` is `self`, or that of a forwarded one. */
struct merge *merge_create(struct loop *loop, unsigned self,
                           void (*send)(const struct frame *f, void *arg), void *arg);
void merge_destroy(struct merge *m); /* what is held is dropped; NULL is fine */

/* The nodes that send through this agent, itself included: when all of them have sent a
 * message that is merged, it is not held longer. */
void merge_expect(struct merge *m, size_t nodes);

/* A frame on its way up, of this node or of one below; not MERGED. */
void merge_up(struct merge *m, const struct frame *f);
/* One frame of several nodes: first << 16 | last of each span. */
void merge_up_spans(struct merge *m, const struct frame *f, const uint32_t *spans,
                    uint32_t n);
void merge_flush(struct merge *m); /* send what is held */

/* Call `fn` for each frame in a MERGED one. -1: it is invalid. */
int merge_entries(const struct frame *merged,
                  void (*fn)(const struct frame *f, const uint32_t *spans, uint32_t n,
                             void *arg),
                  void *arg, struct ddp_err *err);
/* Call `fn` for each node of each of them, with its node number. The data of a merged
 * fence come with the first node's frame. */
int merge_split(const struct frame *merged, void (*fn)(const struct frame *f, void *arg),
                void *arg, struct ddp_err *err);

#endif
