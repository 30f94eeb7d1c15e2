/* launcher/envfwd.h - which of the user's variables travel, and what -x adds
 *
 * Ranks see the environment ddprun was started in, on every host. Left behind are the
 * names that are true only of one machine or one session; envfwd.c has the table, a
 * reason a row. Names need not be identifiers: no shell carries them.
 */
#ifndef LAUNCHER_ENVFWD_H
#define LAUNCHER_ENVFWD_H

#include "common/strv.h"

#include <stdbool.h>

/* The environment `environ_` with -x applied ("NAME" or "NAME=value" each). For a remote
 * host (`travels`) the machine-bound names stay behind, unless -x names them.
 * `user_set` (may be NULL) gets the names given with -x that have a value, `missing`
 * (may be NULL) those given without one and not set here: there is nothing to export. */
void envfwd_collect(char *const *environ_, const struct strv *export_env, bool travels,
                    struct strv *env, struct strv *user_set, struct strv *missing);

/* Has PBS made this value of OMP_NUM_THREADS? It is the CPUs of a whole chunk ($NCPUS),
 * however many ranks (mpiprocs) share these, and each node has its own. */
bool envfwd_of_chunk(char *const *env, const char *threads);

/* The table, a row a line, for --show-env. */
void envfwd_print(void (*line)(const char *text, void *arg), void *arg);

/* Why `name` stays on its machine, or NULL when it travels. */
const char *envfwd_stays(const char *name);

#endif
