/* common/listener.h - accept connections in an event loop
 *
 * Without a free descriptor, or memory for a socket, connections stay pending: the
 * listener then pauses, as the loop would spin, unless the owner can free one.
 */
#ifndef COMMON_LISTENER_H
#define COMMON_LISTENER_H

#include "common/loop.h"

#include <stdbool.h>
#include <sys/socket.h>

struct listener;

/* `fd` is non-blocking and close-on-exec, and the callback's; `from` has the size of a
 * sockaddr_storage. */
typedef void (*listener_fn)(int fd, const struct sockaddr *from, void *arg);

/* Takes over `fd`, which listens and is non-blocking. `what` it leads to, for messages,
 * is borrowed. */
struct listener *listener_create(struct loop *loop, int fd, const char *what,
                                 listener_fn fn, void *arg);
void listener_destroy(struct listener *l); /* NULL is fine; the callback may call it */
/* Call `full` then: true, if it has freed a descriptor, as accepting is tried again. */
void listener_on_full(struct listener *l, bool (*full)(void *arg));
int listener_fd(const struct listener *l); /* borrowed; NULL: -1 */

/* Log a warning of a connection that the callback does not want, one a minute at most. */
void listener_refused(struct listener *l, const struct sockaddr *from, const char *why);

#endif
