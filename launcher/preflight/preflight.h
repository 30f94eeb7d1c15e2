/* launcher/preflight/preflight.h - --preflight: is every host fit for this job
 *
 * Agents are started as for a job, by the same ways and as the same user; but instead of
 * orders they get questions: first about themselves, then about the way to the next host.
 * Then the findings of all are compared, printed as a table, and each problem with its
 * cure as a line. Nothing of the program is run.
 *
 * Owner: the job, of which it is one way to go on after the agents have been gathered.
 */
#ifndef LAUNCHER_PREFLIGHT_PREFLIGHT_H
#define LAUNCHER_PREFLIGHT_PREFLIGHT_H

#include "launcher/link/frame.h"

struct job;
struct preflight;

struct preflight *preflight_create(struct job *j);
void preflight_destroy(struct preflight *p); /* NULL is fine */

/* A host has joined; every host has joined, or will not. */
void preflight_joined(struct preflight *p, unsigned node);
void preflight_begin(struct preflight *p);

/* What comes up from the agents. */
int preflight_hear(struct preflight *p, unsigned node, const struct frame *f,
                   struct ddp_err *err);
/* A host that was there has gone: said in the table, and the others go on. */
void preflight_lost(struct preflight *p, unsigned node, const char *why);

#endif
