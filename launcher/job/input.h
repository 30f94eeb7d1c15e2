/* launcher/job/input.h - forwards ddprun's stdin to the ranks that read it
 *
 * Flow control: stdin is read only up to the credit of the nodes. A read never stops
 * ddprun with SIGTTIN: while another process group has the terminal (ddprun in the
 * background), nothing is read.
 */
#ifndef LAUNCHER_JOB_INPUT_H
#define LAUNCHER_JOB_INPUT_H

#include "common/loop.h"

#include <stdbool.h>
#include <stddef.h>

struct input;

/* `fd` is borrowed. While `wanted` is false nothing is read, until input_continue().
 * `send` gets at most PIECE_MAX bytes per call, and n == 0 at the end of the input, which
 * may be one that cannot be read: `failed` then gets errno. */
struct input *input_create(struct loop *loop, int fd, bool (*wanted)(void *arg),
                           void (*send)(const void *data, size_t n, void *arg),
                           void (*failed)(int error, void *arg), void *arg);
void input_destroy(struct input *in);

/* At least `n` bytes may be read now. */
void input_allow(struct input *in, size_t n);

/* It may be wanted again; or ddprun may have the terminal again, after SIGCONT. */
void input_continue(struct input *in);

#endif
