/* launcher/plugins/observe/event_file.h - events to a file, a pipe or our stdout
 *
 * A thread writes (io/writer.h): a file system that does not answer holds up neither the
 * job nor its end. While more than 16 MiB are queued, events are dropped and counted.
 */
#ifndef LAUNCHER_PLUGINS_OBSERVE_EVENT_FILE_H
#define LAUNCHER_PLUGINS_OBSERVE_EVENT_FILE_H

#include "launcher/job/state.h"

struct event_file;

/* Can it be written, as far as can be checked in advance (io/path_check.h)? -1: no. */
int event_file_check(const char *where, struct ddp_err *err);
/* `where`: a path, appended to; "fd:N"; "-": our stdout, between lines of ranks. Fails
 * with one line if it cannot be written. */
struct event_file *event_file_open(struct job *j, const char *where, struct ddp_err *err);
/* Write what is queued, for some seconds at most, and close. NULL is fine. */
void event_file_close(struct event_file *f);

void event_file_put(const char *line, size_t size, void *file); /* an event_fn */

#endif
