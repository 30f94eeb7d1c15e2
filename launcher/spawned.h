/* launcher/spawned.h - a ddprun that another one has started for MPI_Comm_spawn()
 *
 * It gets that one's options, the number of ranks and the programs in its command line,
 * and in variables what no option says (launcher/plugins/spawn/).
 */
#ifndef LAUNCHER_SPAWNED_H
#define LAUNCHER_SPAWNED_H

#include "launcher/opts.h"

#define SPAWNED_NUMBER "DDPRUN_SPAWNED"       /* opts.spawned */
#define SPAWNED_HOSTS  "DDPRUN_SPAWNED_HOSTS" /* as -H; "": this machine */
#define SPAWNED_KEYS   "DDPRUN_SPAWNED_KEYS"  /* lines "KEY=VALUE" for PMI */

/* Is this one? Then the variables are removed, and `o` is changed: what is for the whole
 * job stays the other ddprun's task. */
bool spawned_take(struct opts *o);

#endif
