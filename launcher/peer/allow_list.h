/* launcher/peer/allow_list.h - the job's hosts, which may join when the key is public */
#ifndef LAUNCHER_PEER_ALLOW_LIST_H
#define LAUNCHER_PEER_ALLOW_LIST_H

#include "common/hostset.h"
#include "launcher/peer/ambient_job.h"

enum { PEER_PORT = 29400 }; /* the head's port without a meeting file; as c10d's */

/* The hosts that the outer launcher names, or those of -H; NULL with `err` when neither
 * does. */
struct hostset *allow_list_hosts(const struct opts *opts, const struct ambient_job *o,
                                 struct ddp_err *err);

#endif
