/* launcher/plugins/diagnose/stacks.h - from printed stacks to frames
 *
 * A thread is {"name": ..., "frames": [{"function", "file", "line"}, ...]}, innermost
 * frame first; "file" and "line" are left out where they are unknown.
 */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_STACKS_H
#define LAUNCHER_PLUGINS_DIAGNOSE_STACKS_H

#include <jansson.h>

/* The output of Python's faulthandler; the main thread comes first in the result, as an
 * interpreter prints its oldest thread last. */
json_t *stacks_of_python(const char *text);
/* The output of `py-spy dump --json`, in the same order. */
json_t *stacks_of_pyspy(const char *text);
/* The output of `eu-stack -m -s` or of gdb's `thread apply all backtrace`. A frame has
 * "module", too, the file of its function, where that is known. */
json_t *stacks_of_native(const char *text);

#endif
