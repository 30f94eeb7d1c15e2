/* launcher/plugins/diagnose/mpi_trace.h - the calls of MPI that a rank has recorded */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_MPI_TRACE_H
#define LAUNCHER_PLUGINS_DIAGNOSE_MPI_TRACE_H

#include "common/mpi_calls.h"

#include <jansson.h>
#include <stdint.h>

/* Adds to "groups" and "calls" of `rank` (trace.h), each group with a "text" for
 * sentences, and "all" if it has all ranks. Sets "message" if it waits for one:
 * {"op", "peer", "tag", "age_ms"}; no "peer": any, or unknown; and "message_ms", how long
 * ago a thread of it has entered its last such wait. Sets "mpi": "recorded", or "partly"
 * if some of its communicators are not. */
void trace_of_mpi(const struct mpi_calls_file *f, int64_t now_ms, json_t *rank);

#endif
