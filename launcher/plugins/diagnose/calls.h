/* launcher/plugins/diagnose/calls.h - the current collectives of ranks, for a page
 *
 * Called every few seconds while a page is open (observe/calls.h), so the answer is short
 * and leaves out what only a report needs. Ranks that have not answered are left out.
 */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_CALLS_H
#define LAUNCHER_PLUGINS_DIAGNOSE_CALLS_H

#include <jansson.h>

/* Of an array of collect() with COLLECT_CALLS, which is taken over:
 *
 *     {"bytes": of the longest answer of a rank,
 *      "ranks": [{"rank", "calls": [{"group", "number", "text", "age_ms", "done",
 *                                    "members"}]}]}
 *
 * A rank has one call for each of its groups, the last entered first: the first that is
 * not done, else the last. "text": "all_reduce #4 of the default group". "members", "*"
 * (all ranks) or "0-3,8": only of one that is not done, if they are known. */
json_t *calls_of(json_t *ranks);

#endif
