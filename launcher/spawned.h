/* launcher/spawned.h - a ddprun that another one has started for MPI_Comm_spawn()
 *
 * It gets that one's options, the number of ranks and the programs in its command line,
 * and in variables what no option says (launcher/plugins/spawn/).
 */
#ifndef LAUNCHER_SPAWNED_H
#define LAUNCHER_SPAWNED_H

#include "launcher/opts.h"

#define SPAWNED_NUMBER "DDPRUN_SPAWNED"       /* opts.spawn_number */
#define SPAWNED_HOSTS  "DDPRUN_SPAWNED_HOSTS" /* as -H; "": this machine */
#define SPAWNED_WDIR   "DDPRUN_SPAWNED_WDIR"
#define SPAWNED_WAITS  "DDPRUN_SPAWNED_WAITS" /* opts.spawn_waits */
#define SPAWNED_APPS   "DDPRUN_SPAWNED_APPS"  /* lines: opts.apps */
#define SPAWNED_KEYS   "DDPRUN_SPAWNED_KEYS"  /* lines "KEY=VALUE" for PMI */

/* Reads and removes these variables. Returns whether they are set. Then options that are
 * for the other ddprun alone are reset. */
bool spawned_take(struct opts *o);

#endif
