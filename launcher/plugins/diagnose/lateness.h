/* launcher/plugins/diagnose/lateness.h - which ranks come late to collectives, repeatedly
 *
 * From the times at which the ranks have entered collectives. A rank's lag is how much
 * later than the median of its group it came. Nothing here waits or does I/O; times are
 * of one clock.
 */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_LATENESS_H
#define LAUNCHER_PLUGINS_DIAGNOSE_LATENESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct lateness;

/* A straggler, and why: of the last `rounds` collectives, in which the ranks of its group
 * had to wait, it was late in `late`, by `lag_ns` on average; the job has lost `share` of
 * that time by it. */
struct straggler {
    int rank;
    unsigned late, rounds;
    int64_t lag_ns, period_ns; /* period: of a round */
    double share;
};

/* A rank is a straggler if others wait for it for `share` (0 to 1) of the time. */
struct lateness *lateness_create(int nranks, double share);
void lateness_destroy(struct lateness *l); /* NULL is fine */

/* `rank` entered collective `number` of `group`. The order does not matter; what is known
 * already is ignored, and so are numbers and times that cannot be: a rank may have
 * written anything. */
void lateness_add(struct lateness *l, int rank, uint64_t group, uint64_t number,
                  int64_t at_ns);

/* Times of the rank are from the clock of `node`, which is known up to `error_ns`: lags
 * behind ranks of other nodes are shorter by that. */
void lateness_clock(struct lateness *l, int rank, int node, int64_t error_ns);
void lateness_forget(struct lateness *l); /* all times; for clocks that have changed */

/* When the times of all ranks were added: examine the collectives that all members have
 * entered since the last call. Returns how many were new; *nfound stragglers are in
 * *found, the caller frees it. */
size_t lateness_examine(struct lateness *l, struct straggler **found, size_t *nfound);

/* In the last examination a rank was late that was not found: more times are needed, or
 * the others are late as well. */
bool lateness_suspects(const struct lateness *l);

/* How a rank and its host share CPUs. */
struct cpu_share {
    bool busy;            /* the host: more processes want to run than it has CPUs */
    double waits_percent; /* of the time the rank waits for a CPU */
    double measured_s;
};
/* May the scheduler be the reason, which favours now one process, now another? */
bool lateness_contended(const struct straggler *is, const struct cpu_share *cpus);

/* Collectives that a rank has entered, and its mean lag in the last ones. */
uint64_t lateness_entered(const struct lateness *l, int rank);
int64_t lateness_lag_ns(const struct lateness *l, int rank);

#endif
