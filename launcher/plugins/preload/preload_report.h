/* launcher/plugins/preload/preload_report.h - time and memory saved by forking ranks, for
 * --report
 *
 * Memory saved: the ranks' anonymous memory ("Anonymous" in the kernel's smaps_rollup),
 * less their proportional share of it ("Pss_Anon"), less that share of the interpreter
 * they were forked from, if it still runs. Pages are unshared as ranks write to them, so
 * this is measured repeatedly, at growing intervals, until the first rank has exited.
 */
#ifndef LAUNCHER_PLUGINS_PRELOAD_PRELOAD_REPORT_H
#define LAUNCHER_PLUGINS_PRELOAD_PRELOAD_REPORT_H

#include "common/loop.h"
#include "launcher/link/message.h"

#include <stddef.h>
#include <sys/types.h>

struct preload_report;

struct preload_report_events {
    /* The pid of the i-th forked rank; 0: it has exited; -1: no such rank. */
    pid_t (*rank)(size_t i, void *arg);
    pid_t (*helper)(void *arg); /* 0: exited */
    void (*report)(const struct msg_savings *m, void *arg);
};

struct preload_report *preload_report_create(struct loop *loop, int64_t import_ms,
                                             const struct preload_report_events *events,
                                             void *arg);
void preload_report_destroy(struct preload_report *s);

void preload_report_forked(struct preload_report *s); /* count one forked rank */
void preload_report_all(struct preload_report *s);    /* all ranks run: start measuring */

/* "Anonymous" and "Pss_Anon" of the text of a smaps_rollup, KiB. -1: missing. */
int preload_report_read(const char *text, long *anonymous, long *fair);

#endif
