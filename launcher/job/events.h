/* launcher/job/events.h - what happens to a job, as a stream of JSON objects
 *
 * One object per event; doc/events.md has the schema. The members that all events have
 * are added here. An event costs nothing without a subscriber. Every line that
 * job_say() prints is an event, too.
 */
#ifndef LAUNCHER_JOB_EVENTS_H
#define LAUNCHER_JOB_EVENTS_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

enum { EVENTS_VERSION = 1 };

struct job;

/* A whole event, with a newline at its end; valid until this returns. */
typedef void (*event_fn)(const char *line, size_t size, void *arg);

/* From now on, in the thread of the loop. `arg` identifies it. */
void events_subscribe(struct job *j, event_fn fn, void *arg);
void events_unsubscribe(struct job *j, const void *arg); /* NULL: all */

/* For callers that have to prepare the members. */
bool events_wanted(const struct job *j);

/* event_emit(j, "restart", "{s:i}", "of", 2): the format is json_pack()'s, an object; its
 * arguments are evaluated only if there are subscribers. Text that is not ours goes
 * through event_text(), as json_pack() fails on bytes that are no UTF-8: "{s:o}", "text",
 * event_text(line). */
#define event_emit(j, ...) (events_wanted(j) ? events_put(j, __VA_ARGS__) : (void)0)
void events_put(struct job *j, const char *name, const char *fmt, ...);

/* A string with U+FFFD in place of what is no UTF-8; null for NULL. */
json_t *event_text(const char *text);

#endif
