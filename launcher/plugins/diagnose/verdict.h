/* launcher/plugins/diagnose/verdict.h - which ranks wait for which, and in which call
 *
 * A pure function of what the ranks of all nodes have answered.
 */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_VERDICT_H
#define LAUNCHER_PLUGINS_DIAGNOSE_VERDICT_H

#include <jansson.h>

/* `ranks`: an array in the order of ranks, of objects of collect() with "host" added, or
 * {"rank", "host", "exited": "exited with status 0"}, or {"rank", "host", "unknown":
 * "its node does not answer"}. The result is
 *
 *     {"kind":      "absent", "exited", "mismatch", "stopped", "cycle", "complete" or
 *                   "none", "sentences": [...], "ranks": [the ranks that are the reason],
 *      "file", "line", "function": where the first of them is, if that is known}
 *
 * The first sentence is about the reason, the others about its consequences. */
json_t *verdict(const json_t *ranks);

#endif
