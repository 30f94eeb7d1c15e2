/* launcher/plugins/preflight/preflight.h - --preflight: check every host for this job
 *
 * Agents are started as for a job, in the same way and as the same user. Instead of ranks
 * they run checks: first of the node, then of the connection to the next node. The
 * launcher compares the findings of all hosts, prints them as a table, and each problem
 * with its remedy as a line. The program is not run.
 *
 * Owner: the job, which runs it in place of the ranks once the agents have joined.
 */
#ifndef LAUNCHER_PLUGINS_PREFLIGHT_PREFLIGHT_H
#define LAUNCHER_PLUGINS_PREFLIGHT_PREFLIGHT_H

#include "launcher/link/frame.h"

struct job;
struct preflight;

struct preflight *preflight_create(struct job *j);
void preflight_destroy(struct preflight *p); /* NULL is fine */

/* A host has joined; every host has joined or failed to. */
void preflight_joined(struct preflight *p, unsigned node);
void preflight_begin(struct preflight *p);

/* Message handler for MSG_FOUND from node `node`; -1: malformed. */
int preflight_on_message(struct preflight *p, unsigned node, const struct frame *f,
                         struct ddp_err *err);
/* A joined host was lost: reported in the table; the other hosts continue. */
void preflight_lost(struct preflight *p, unsigned node, const char *why);

#endif
