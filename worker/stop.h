/* worker/stop.h - SIGTERM, SIGINT and SIGUSR1: finish the step, then stop
 *
 * The first signal asks; the trainer looks at stop_signal() once a step and tells the
 * other ranks, so that all stop at the same one. A second signal, or STOP_PATIENCE_S
 * without an end (a peer is gone, a disk hangs), ends the process at once.
 *
 * SIGUSR1 is a scheduler's warning, some time before it makes an end: it asks, too, and
 * has no patience of its own. SIGTERM after it is a first signal.
 */
#ifndef WORKER_STOP_H
#define WORKER_STOP_H

enum { STOP_PATIENCE_S = 30 };

/* Also: writes past a limit of the file size fail instead of killing (SIGXFSZ), and so do
 * writes to a closed pipe (SIGPIPE). */
void stop_install(void);

/* 0, or the signal that asked. */
int stop_signal(void);

/* Everything is done, the exit code is settled: signals come too late to change it. What
 * hangs now still ends with STOP_PATIENCE_S. */
void stop_over(void);

#endif
