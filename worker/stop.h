/* worker/stop.h - SIGTERM and SIGINT: finish the step, then stop
 *
 * The first signal asks; the trainer looks at stop_signal() once a step and tells the
 * other ranks, so that all stop at the same one. A second signal, or STOP_PATIENCE_S
 * without an end (a peer is gone, a disk hangs), ends the process at once.
 */
#ifndef WORKER_STOP_H
#define WORKER_STOP_H

enum { STOP_PATIENCE_S = 30 };

/* Also: writes past a limit of the file size fail instead of killing (SIGXFSZ), and so do
 * writes to a closed pipe (SIGPIPE). */
void stop_install(void);

/* 0, or the signal that asked. */
int stop_signal(void);

#endif
