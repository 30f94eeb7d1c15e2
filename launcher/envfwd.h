/* launcher/envfwd.h - environment forwarding: which variables ranks on other hosts get,
 * and -x
 *
 * Ranks on all hosts get ddprun's environment, without the variables that describe one
 * machine or one login session; envfwd.c has the table with a reason per row. Names need
 * not be shell identifiers: no shell is involved.
 */
#ifndef LAUNCHER_ENVFWD_H
#define LAUNCHER_ENVFWD_H

#include "common/strv.h"

#include <stdbool.h>
#include <stdio.h>

/* The environment `environ_` with -x applied ("NAME" or "NAME=value" each). For
 * remote hosts (`travels`) machine-bound names are dropped, unless -x names them.
 * `user_set` (may be NULL) gets the names given with -x that have a value, `missing`
 * (may be NULL) those without one: not set here, so nothing is exported. */
void envfwd_collect(char *const *environ_, const struct strv *export_env, bool travels,
                    struct strv *env, struct strv *user_set, struct strv *missing);

/* Did PBS set OMP_NUM_THREADS to `threads`? PBS sets it to the CPUs of a chunk ($NCPUS),
 * regardless of how many ranks (mpiprocs) share them; it differs by node. */
bool envfwd_of_chunk(char *const *env, const char *threads);

/* The table, one row per line, for --show-env. */
void envfwd_print(FILE *out);

/* Why `name` is not forwarded to other hosts, or NULL: it is. */
const char *envfwd_stays(const char *name);

#endif
