/* common/rank_map.h - a file of this rank that ddprun-diagnose reads
 *
 * Its name begins with DDPRUN_DIAGNOSE, followed by the pid and a suffix; the agent
 * removes it.
 */
#ifndef COMMON_RANK_MAP_H
#define COMMON_RANK_MAP_H

#include <stddef.h>

/* A new file, zeroed, mapped until the process ends. Its memory is there: a later write,
 * where /dev/shm has none left, would end the process. NULL: there is no DDPRUN_DIAGNOSE,
 * or no room. */
void *rank_map(const char *suffix, size_t size);

#endif
