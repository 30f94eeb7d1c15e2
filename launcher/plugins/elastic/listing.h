/* launcher/plugins/elastic/listing.h - which hosts are offered now
 *
 * Runs --host-discovery-script again and again, or reads the hostfile when it has
 * changed. An unusable answer is reported once, and the last good one stays.
 *
 * Owner: the plug-in.
 */
#ifndef LAUNCHER_PLUGINS_ELASTIC_LISTING_H
#define LAUNCHER_PLUGINS_ELASTIC_LISTING_H

#include "launcher/alloc/alloc.h"
#include "launcher/transport/reap.h"

struct listing;

/* `update` gets each good answer; borrowed for the time of the call. */
struct listing *listing_create(struct loop *loop, struct reap *reap,
                               const struct opts *opts,
                               void (*update)(const struct alloc *hosts, void *arg),
                               void *arg);
void listing_destroy(struct listing *l); /* NULL is fine */

#endif
