/* launcher/preflight/results.h - the findings of all hosts, judged and printed
 *
 * What one host says is worth little; side by side the findings are. Hosts that say the
 * same share a line of the table, and a problem that many have is one line, too. The
 * odd one out is found by the majority: which of two programs is the right one nobody
 * knows, but that they differ is plain.
 */
#ifndef LAUNCHER_PREFLIGHT_RESULTS_H
#define LAUNCHER_PREFLIGHT_RESULTS_H

#include "launcher/preflight/check.h"

struct results;

/* `names` of all hosts, by node number; borrowed. */
struct results *results_create(const char *const *names, size_t n);
void results_destroy(struct results *b);

/* Takes the finding over. One that is there already (same host, check and item) gives way
 * when it has a number that is worse: a second measurement counts if it is better. */
void results_add(struct results *b, unsigned node, struct msg_found *f);

/* Compare the hosts: adds problems. Call it once, when all is there. */
void results_judge(struct results *b);

/* Would results_judge() find this host's number odd, as far as is known? */
bool results_is_odd(const struct results *b, unsigned node, uint32_t check);

typedef void (*results_line_fn)(const char *line, void *arg);

/* The table, and the problems with their hosts: a line each. When all is judged, as
 * are the following. */
void results_table(const struct results *b, results_line_fn line, void *arg);
void results_problems(const struct results *b, results_line_fn line, void *arg);

/* Problems that are no mere remarks, and the hosts that have some. */
size_t results_faults(const struct results *b, size_t *hosts);

#endif
