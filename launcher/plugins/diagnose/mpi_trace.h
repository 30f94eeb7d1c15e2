/* launcher/plugins/diagnose/mpi_trace.h - the calls of MPI that a rank has recorded */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_MPI_TRACE_H
#define LAUNCHER_PLUGINS_DIAGNOSE_MPI_TRACE_H

#include "common/mpi_calls.h"

#include <jansson.h>
#include <stdint.h>

/* Adds to "groups" and "calls" of `rank` (trace.h), each group with a "text" for
 * sentences, "all" if it has all ranks, and "messages": [peer, tag, how many it has begun
 * to send, to receive] for each peer and tag, of which MPI_ANY is any. Sets "counted" if
 * these are all of them in such a record: "all", or "some" if records are missing.
 *
 * Sets "message" if it waits for one: {"op", "age_ms", "requests": how many, "awaits":
 * [group, peer, tag, number, whether it sends] for each message that is known, number 0
 * if it is not counted}; and "message_ms", how long ago a thread of it has entered its
 * last such wait. Sets "mpi": "recorded", or "partly" if some of its communicators are
 * not. */
void trace_of_mpi(const struct mpi_calls_file *f, int64_t now_ms, json_t *rank);

#endif
