/* worker/signals.h - SIGTERM, SIGINT and SIGUSR1: finish the step, then stop
 *
 * The first signal requests a stop; the trainer checks signals_stop_requested() once
 * per step and tells the other ranks, so that all stop after the same step. A second
 * signal, or SIGNALS_PATIENCE_S without an end (a peer is gone, a disk hangs), ends the
 * process at once. A SIGTERM within SIGNALS_REPEAT_S of another, and a SIGINT within a
 * second, is the same request: schedulers send one to every process (LSF an INT), and the
 * launcher passes on its own.
 *
 * SIGUSR1 is a scheduler's warning before the end of the job: it requests a stop, too,
 * but without a deadline of its own. SIGTERM after it counts as a first signal.
 */
#ifndef WORKER_SIGNALS_H
#define WORKER_SIGNALS_H

/* Longer than a launcher leaves the ranks to save: it kills them, and knows why. */
enum { SIGNALS_PATIENCE_S = 600, SIGNALS_REPEAT_S = 5 };

/* Also ignores SIGXFSZ and SIGPIPE, so that such writes fail instead. */
void signals_install(void);

/* 0, or the signal that requested the stop. */
int signals_stop_requested(void);

/* Fixes the exit code: later signals do not change it. A process that hangs still ends
 * after SIGNALS_PATIENCE_S. */
void signals_ignore(void);

#endif
