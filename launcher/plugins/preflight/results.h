/* launcher/plugins/preflight/results.h - compare and print the findings of all hosts
 *
 * Hosts with the same finding share a line of the table, and a problem of several hosts
 * is one line. A host whose key differs from the majority's is reported: which of two
 * versions is the right one is not known, only that they differ.
 */
#ifndef LAUNCHER_PLUGINS_PREFLIGHT_RESULTS_H
#define LAUNCHER_PLUGINS_PREFLIGHT_RESULTS_H

#include "launcher/plugins/preflight/check.h"

#include <stdio.h>

struct results;

/* `names` of all hosts, by node number; borrowed. */
struct results *results_create(const char *const *names, size_t n);
void results_destroy(struct results *b);

/* Takes over `*f`. */
void results_add(struct results *b, unsigned node, struct msg_finding *f);

/* Compare the hosts and add the problems found. Call once, after the last add. */
void results_judge(struct results *b);

/* These need results_judge() first. */
void results_table(const struct results *b, FILE *out);
/* Add a line for each problem, with its hosts, and then for each remark. Returns the
 * number of problems. */
size_t results_problems(const struct results *b, struct strv *lines);
/* The number of hosts that have problems. */
size_t results_faulty(const struct results *b);

#endif
