/* worker/group/hang_info.h - tell a hang report of the launcher what this rank waits for
 *
 * DDPRUN_DIAGNOSE in the environment is the beginning of the name of a file, which has
 * the collective that is waited for as JSON, in the form of doc/hangs.md, as long as a
 * wait takes that is longer than some 100 ms. Shorter waits cost nothing.
 */
#ifndef WORKER_GROUP_HANG_INFO_H
#define WORKER_GROUP_HANG_INFO_H

#include "worker/group/group.h"

/* This rank has waited for its first collective in flight since `waited_ms`. */
void hang_info_set(const struct ddp_group *g, int64_t waited_ms);
void hang_info_clear(void);

#endif
