/* launcher/plugins/horovod/forward.h - connections of ranks, forwarded over the links
 *
 * Like a port that ssh forwards: an agent listens on the loopback interface of its host
 * and passes what Horovod's ranks send there to the launcher, in FORWARD messages. Each
 * side has such a table. A connection is identified by its node and a number, which the
 * agent never uses twice.
 */
#ifndef LAUNCHER_PLUGINS_HOROVOD_FORWARD_H
#define LAUNCHER_PLUGINS_HOROVOD_FORWARD_H

#include "common/loop.h"
#include "launcher/link/message.h"

struct forward;

/* `sent` is called with the bytes that a connection has received, and when it closes. */
struct forward *forward_create(struct loop *loop,
                               void (*sent)(unsigned node, const struct msg_forward *m,
                                            void *arg),
                               void *arg);
void forward_destroy(struct forward *f); /* may be NULL */

/* Forward what comes on `fd`, a connected socket, which is taken over. */
void forward_add(struct forward *f, unsigned node, uint32_t id, int fd);
/* The other side has sent FORWARD_DATA or FORWARD_CLOSE. A connection that is closed here
 * already is ignored. */
void forward_receive(struct forward *f, unsigned node, const struct msg_forward *m);
/* Close those of a node, or with NODE_ALL all, without telling the other side. */
void forward_drop(struct forward *f, unsigned node);

#endif
