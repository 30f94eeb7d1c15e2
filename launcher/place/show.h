/* launcher/place/show.h - --dry-run: what would happen, and where each number came from
 *
 * Printed from the very values that a launch uses: the allocation, the plan, the
 * bindings, the contract. Text for people; every line is given to `line` without its
 * newline.
 */
#ifndef LAUNCHER_PLACE_SHOW_H
#define LAUNCHER_PLACE_SHOW_H

#include "launcher/alloc/alloc.h"
#include "launcher/contract.h"
#include "launcher/opts.h"
#include "launcher/place/bind.h"
#include "launcher/place/plan.h"

typedef void (*show_fn)(const char *line, void *arg);

/* All borrowed. */
struct show {
    const struct opts *opts;
    const struct alloc *alloc;
    const struct plan *plan;
    /* By node of the plan: bindings by local rank, or NULL where they are found out on
     * the host itself. The array itself may be NULL. */
    const struct binding *const *bindings;
    /* What all ranks share; the rest is filled in from the plan. NULL and a port of 0 are
     * shown as chosen at start. */
    const struct rank_facts *facts;
    const struct strv *env, *user_set; /* as contract_apply() gets them */
    /* What would be run, in order: "n1: ssh ... ddprun-agent ..."; NULL-terminated. */
    char *const *commands;
    const char *python; /* what becomes of Python ranks; NULL: they are none */
};

/* Hosts, ranks, their environment and the commands: rank 0 in full, of the others what
 * differs. Inherited variables by name only: their values may be secret, and are what
 * they are. */
void show_dry_run(const struct show *s, show_fn line, void *arg);

#endif
