/* worker/group/hang_info.h - for the launcher's hang reports: what this rank waits for
 *
 * DDPRUN_DIAGNOSE in the environment is the beginning of the name of a file. While a wait
 * lasts longer than some 100 ms, the file has the collective as JSON (trace_of_library()
 * in launcher/plugins/diagnose/trace.h reads it). Shorter waits cost nothing.
 */
#ifndef WORKER_GROUP_HANG_INFO_H
#define WORKER_GROUP_HANG_INFO_H

#include "worker/group/group.h"

/* This rank has waited for its first collective in flight since `waited_ms`. */
void hang_info_set(const struct ddp_group *g, int64_t waited_ms);
void hang_info_clear(void);

#endif
