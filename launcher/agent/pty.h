/* launcher/agent/pty.h - the pseudo-terminal of a rank (--pty)
 *
 * The rank has the slave side as stdin, stdout and stderr, and as the controlling
 * terminal of its session, so the kernel sends SIGINT, SIGQUIT, SIGTSTP and SIGWINCH to
 * its foreground process group.
 */
#ifndef LAUNCHER_AGENT_PTY_H
#define LAUNCHER_AGENT_PTY_H

struct pty_size {
    unsigned rows, columns;
};

/* Open both sides, close-on-exec; only the master is non-blocking. -1 with errno. */
int pty_open(const struct pty_size *size, int *master, int *slave);

void pty_resize(int master, const struct pty_size *size);

/* End of the input, as Ctrl-D types it. */
void pty_end_input(int master);

#endif
