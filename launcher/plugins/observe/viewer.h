/* launcher/plugins/observe/viewer.h - the program that serves the page and the metrics
 *
 * ddprun-view (view/view.h), a child that the launcher feeds over a socketpair: events,
 * the output of ranks for the page, and the status when it asks (control.h). It is not
 * waited for: what it does not read in time of the output is dropped, and its end costs
 * the job nothing.
 */
#ifndef LAUNCHER_PLUGINS_OBSERVE_VIEWER_H
#define LAUNCHER_PLUGINS_OBSERVE_VIEWER_H

#include "launcher/job/state.h"

#include <event2/buffer.h>

struct viewer;

/* --ui, --metrics and --metric of the job's options. Listens, and sets the
 * variables by which Hugging Face's Trainer reports to the page and PyTorch's flight
 * recorder stays short. Called before the environment of the ranks is made. NULL with
 * `err`: an address cannot be used. */
struct viewer *viewer_create(struct job *j, struct ddp_err *err);
/* Print the URL and start the program. */
int viewer_start(struct viewer *v, struct ddp_err *err);
void viewer_output(struct viewer *v, int rank, unsigned stream, const void *data,
                   size_t size);
/* The loop has stopped: pass the last events and the last status on, and let a page that
 * is open show them, for 2 s at most. */
void viewer_finish(struct viewer *v, struct evbuffer *status);
void viewer_destroy(struct viewer *v); /* NULL is fine */

#endif
