/* launcher/agent/preload_report.h - what it has saved to fork ranks, for --report
 *
 * Memory is what the ranks would take if each had imported by itself, less what they
 * take: pages that are nobody's file (from the kernel's smaps_rollup, "Anonymous"), less
 * each rank's fair share of them ("Pss_Anon") and that of the interpreter they were
 * forked from, if it is still there. Pages part as ranks write to them, so they are
 * looked at again and again, less and less often, until the first rank has ended.
 */
#ifndef LAUNCHER_AGENT_PRELOAD_REPORT_H
#define LAUNCHER_AGENT_PRELOAD_REPORT_H

#include "common/loop.h"
#include "launcher/link/message.h"

#include <stddef.h>
#include <sys/types.h>

struct preload_report;

struct preload_report_events {
    /* The i-th of the forked ranks; 0: it has ended; -1: there are no more. */
    pid_t (*rank)(size_t i, void *arg);
    pid_t (*helper)(void *arg); /* 0: it has ended */
    void (*tell)(const struct msg_saved *m, void *arg);
};

struct preload_report *preload_report_create(struct loop *loop, int64_t import_ms,
                                             const struct preload_report_events *events,
                                             void *arg);
void preload_report_destroy(struct preload_report *s);

void preload_report_forked(struct preload_report *s); /* one more */
void preload_report_all(struct preload_report *s); /* they all run: look, now and later */

/* "Anonymous" and "Pss_Anon" of the text of a smaps_rollup, KiB. -1: not there. */
int preload_report_read(const char *text, long *anonymous, long *fair);

#endif
