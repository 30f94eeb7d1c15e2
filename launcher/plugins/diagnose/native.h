/* launcher/plugins/diagnose/native.h - stacks of any process, by an installed debugger */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_NATIVE_H
#define LAUNCHER_PLUGINS_DIAGNOSE_NATIVE_H

#include "launcher/plugins/diagnose/proc.h"

#include <stdint.h>

/* Sets "threads" (stacks.h), or "no_stacks" with the reason, in `out` of each. Waits at
 * most until `until_ms` (now_ms()). */
void native_stacks(const struct described *list, size_t n, int64_t until_ms);

#endif
