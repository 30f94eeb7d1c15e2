/* launcher/control/control.h - requests to a running job, from programs of the same user
 *
 * The launcher listens on a Unix socket in rundir.h's directory; the kernel reports the
 * user of a connecting process (SO_PEERCRED), and only ours and root are admitted. In
 * both directions a message is a JSON object on a line. A request has the member "do",
 * the name of its handler, which answers now or later, once or often, or not at all.
 *
 * Owner: the job. Connections have numbers, so a late answer to one that has closed is
 * simply dropped.
 */
#ifndef LAUNCHER_CONTROL_CONTROL_H
#define LAUNCHER_CONTROL_CONTROL_H

#include "common/loop.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct control;

typedef void (*control_fn)(struct control *c, uint32_t peer, const json_t *request,
                           void *arg);

/* Costs nothing yet: a socket for the job `id` (borrowed) is made some ms later, as most
 * launches without one have ended by then. */
struct control *control_create(struct loop *loop, const char *id);
void control_destroy(struct control *c); /* NULL is fine */

/* Call `fn` for requests with "do": `what` (borrowed). */
void control_handle(struct control *c, const char *what, control_fn fn, void *arg);

/* Serve a socket of a child of ours, too; takes it over. Returns its number. */
uint32_t control_attach(struct control *c, int fd);

void control_reply(struct control *c, uint32_t peer, const json_t *message);
void control_refuse(struct control *c, uint32_t peer, const char *why);
/* The same for a line that is text already, and for the bytes that it announces. */
void control_send(struct control *c, uint32_t peer, const void *data, size_t size);
/* Write what the peer has not read, until `deadline_ms`: when the loop no longer runs. */
void control_flush(struct control *c, uint32_t peer, int64_t deadline_ms);
/* Bytes that the peer has not read yet; SIZE_MAX: it has closed. */
size_t control_queued(const struct control *c, uint32_t peer);

#endif
