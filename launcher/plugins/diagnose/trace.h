/* launcher/plugins/diagnose/trace.h - a rank's record of its collectives
 *
 * "groups" of a rank: [{"id", "name", "ranks": [...], "entered", "done"}]: numbers of the
 * last collective that it has entered, and that it has finished. "calls": the last
 * collectives, [{"group", "number", "op", "sizes": [[...]], "types": [...], "age_ms",
 * "done"}]. "age_ms": since it was entered.
 */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_TRACE_H
#define LAUNCHER_PLUGINS_DIAGNOSE_TRACE_H

#include <jansson.h>
#include <stdint.h>

/* Of the beginning of the text below: take out the middle of its entries. Returns the new
 * size. */
size_t trace_shorten(char *text, size_t size);

/* From the answer of PyTorch's flight recorder (fr_trace_json) at `now_ns` of its wall
 * clock, and the lines "NAME RANK,RANK" about its groups (may be NULL). Adds to "groups"
 * and "calls" of `rank`; -1: it is no such answer. */
int trace_of_torch(const char *text, const char *groups, int64_t now_ns, json_t *rank);

/* From these lines: sets "made", the last groups of its ranks, [{"id", "ranks"}], where
 * groups that all ranks make together have the same "id" "N.M" (M-th new_group() after
 * the N-th init_process_group()), and "making", {"age_ms"}, if the last one is not
 * complete; `age_ms`: of the last line. */
void trace_of_groups(const char *groups, int64_t age_ms, json_t *rank);

/* The same as trace_of_torch() from the file of libddpgroup (worker/group/diagnose.c);
 * empty while the rank does not wait. Sets "message" and "message_ms" (mpi_trace.h) if it
 * waits for one. */
int trace_of_library(const char *text, int64_t now_ns, json_t *rank);

#endif
