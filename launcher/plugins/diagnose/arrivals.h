/* launcher/plugins/diagnose/arrivals.h - when the ranks of this node entered collectives
 */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_ARRIVALS_H
#define LAUNCHER_PLUGINS_DIAGNOSE_ARRIVALS_H

#include "launcher/plugins/diagnose/collect.h"

#include <stdint.h>
#include <stdio.h>

/* One collective, as ddprun-diagnose writes it for the agent: in binary. */
struct arrivals_record {
    uint64_t group, number;
    int64_t at_ns; /* CLOCK_MONOTONIC of this node */
    uint32_t rank, zero;
};

/* Write the last of each rank; those that do not answer in time have none. */
void arrivals_write(const char *folder, const struct collect_rank *ranks, size_t n,
                    FILE *out);

/* The arrivals in an answer of PyTorch's flight recorder: `fn` for each. `ahead_ns`: its
 * wall clock minus CLOCK_MONOTONIC. */
void arrivals_of_torch(const char *text, int64_t ahead_ns,
                       void (*fn)(const struct arrivals_record *r, void *arg), void *arg);

#endif
