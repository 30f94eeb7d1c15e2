/* launcher/job/input.h - our stdin, carried to the ranks that take it
 *
 * Read only as far as the nodes have room for it. Reading never stops us: when the
 * terminal belongs to somebody else (ddprun in the background) nothing is read until it
 * is ours again.
 */
#ifndef LAUNCHER_JOB_INPUT_H
#define LAUNCHER_JOB_INPUT_H

#include "common/loop.h"

#include <stddef.h>

struct input;

/* `fd` is borrowed. `send` gets pieces of at most PIECE_MAX bytes, and at last none. */
struct input *input_create(struct loop *loop, int fd,
                           void (*send)(const void *data, size_t n, void *arg),
                           void *arg);
void input_destroy(struct input *in);

/* So many more bytes may be sent. */
void input_credit(struct input *in, size_t n);

/* We have been continued: perhaps the terminal is ours now. */
void input_continue(struct input *in);

#endif
