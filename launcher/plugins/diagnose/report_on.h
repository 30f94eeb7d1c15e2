/* launcher/plugins/diagnose/report_on.h - --report-on: from another terminal */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_REPORT_ON_H
#define LAUNCHER_PLUGINS_DIAGNOSE_REPORT_ON_H

#include "include/ddprun/err.h"

/* Ask a running job of ours for a report and print it. -1 with `err`. */
int report_on(const char *job, struct ddp_err *err);

#endif
