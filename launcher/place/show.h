/* launcher/place/show.h - --dry-run: print the plan, and the source of each number
 *
 * Uses the same data as a launch: the allocation, the plan, the bindings, the contract.
 */
#ifndef LAUNCHER_PLACE_SHOW_H
#define LAUNCHER_PLACE_SHOW_H

#include "launcher/alloc/alloc.h"
#include "launcher/contract.h"
#include "launcher/opts.h"
#include "launcher/place/bind.h"
#include "launcher/place/plan.h"

#include <stdio.h>

/* All borrowed. */
struct show {
    const struct opts *opts;
    const struct alloc *alloc;
    const struct plan *plan;
    /* By node of the plan: bindings by local rank, or NULL if they are decided on the
     * node. The array itself may be NULL. */
    const struct binding *const *bindings;
    /* Facts common to all ranks; the rest is filled in from the plan. NULL and a port of
     * 0 are printed as chosen at start. */
    const struct rank_facts *facts;
    const struct strv *env, *user_set; /* as for contract_apply() */
    /* The commands to be run, in order: "n1: ssh ... ddprun-agent ..."; up to NULL. */
    char *const *commands;
    char *const *notes; /* further lines; ends with NULL, or is NULL */
};

/* Hosts, ranks, environment and commands: rank 0 in full, of the other ranks the
 * differences. Inherited variables by name only: their values may be secret. */
void show_dry_run(const struct show *s, FILE *out);

#endif
