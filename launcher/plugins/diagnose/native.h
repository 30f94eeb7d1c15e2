/* launcher/plugins/diagnose/native.h - stacks of any process, by an installed debugger */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_NATIVE_H
#define LAUNCHER_PLUGINS_DIAGNOSE_NATIVE_H

#include <jansson.h>
#include <stdint.h>
#include <sys/types.h>

/* Sets "threads" (stacks.h), or "no_stacks" with the reason, in `process`. Waits at most
 * until `until_ms` (now_ms()). */
void native_stacks(pid_t pid, int64_t until_ms, json_t *process);

#endif
