/* launcher/plugins/diagnose/ras.h - what NCCL says of the job (its RAS subsystem, 2.24)
 */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_RAS_H
#define LAUNCHER_PLUGINS_DIAGNOSE_RAS_H

#include "launcher/plugins/diagnose/rank_files.h"

#include <jansson.h>

/* In the agent's folder: the address at which the ranks' NCCL answers, if they use it. */
#define RAS_STEM   "nccl"
#define RAS_SUFFIX "ras"

/* Ask for the state of all communicators; rank_trace_read() reads the answer. No socket
 * in *t: no rank here listens. */
void ras_ask(struct rank_trace *t, const char *folder);
/* Sets "nccl_ras", the text, in `rank`. */
void ras_take(struct rank_trace *t, json_t *rank);

#endif
