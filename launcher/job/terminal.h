/* launcher/job/terminal.h - our terminal while rank 0 has a pseudo-terminal (--pty)
 *
 * In raw mode each byte that is typed goes to the rank, Ctrl-C included; its
 * pseudo-terminal does the echo and sends the signals. The modes are restored by
 * terminal_set(), terminal_destroy(), and by any signal that ends ddprun and can be
 * caught.
 */
#ifndef LAUNCHER_JOB_TERMINAL_H
#define LAUNCHER_JOB_TERMINAL_H

#include "launcher/opts.h"

#include <stdbool.h>

struct terminal;

/* Does the only rank get a pseudo-terminal? By --pty, or without an option if stdin,
 * stdout and stderr are a terminal in whose foreground ddprun is, and nothing is added to
 * the output. */
bool terminal_wanted(const struct opts *opts, int nranks);

/* The size of the terminal at stdin, stdout or stderr; 24 x 80 without one. */
void terminal_size(unsigned *rows, unsigned *columns);

/* One per process, for stdin. */
struct terminal *terminal_create(void);
void terminal_destroy(struct terminal *t);

enum terminal_mode {
    TERMINAL_OURS, /* as it was */
    TERMINAL_KEYS, /* the same for keys; bytes are written as they are */
    TERMINAL_RAW
};

/* Does nothing in the background, or if stdin is no terminal. */
void terminal_set(struct terminal *t, enum terminal_mode mode);
/* From now on another process writes to it, too: newlines are translated for it. */
void terminal_share(struct terminal *t);

#endif
