/* launcher/plugins/horovod/hosts.h - hosts that an elastic Horovod job gains and loses
 *
 * Hosts that were added, or have other slots, take part in the next world; the ranks of
 * those that are not to be used any more get no place in it. Rank 0 is told when hosts
 * have changed, by Horovod's own protocol (notify.h).
 */
#ifndef LAUNCHER_PLUGINS_HOROVOD_HOSTS_H
#define LAUNCHER_PLUGINS_HOROVOD_HOSTS_H

#include "launcher/plugins/horovod/slots.h"

/* Before a world is formed: add and drop ranks. */
void hosts_take(struct horovod *h);
/* Are there too few? The ranks that are left then wait, with their state; after
 * --node-wait the job fails. */
bool hosts_awaited(struct horovod *h);
/* Every tick: let hosts leave whose ranks have ended; tell rank 0 of changes. */
void hosts_release(struct horovod *h);
void hosts_watch(struct horovod *h);
/* A host is lost. True: the job goes on without it. */
bool hosts_claim(struct horovod *h, unsigned node, const char *why);

#endif
