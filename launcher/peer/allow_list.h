/* launcher/peer/allow_list.h - the hosts of the job, where no secret is shared */
#ifndef LAUNCHER_PEER_ALLOW_LIST_H
#define LAUNCHER_PEER_ALLOW_LIST_H

#include "common/hostset.h"
#include "launcher/peer/ambient_job.h"

enum { PEER_PORT = 29400 }; /* where peers meet without a card; torchrun's c10d, too */

/* The hosts that the start names, or those of -H; NULL with `err` when neither does. */
struct hostset *allow_list_hosts(const struct opts *opts, const struct ambient_job *o,
                                 struct ddp_err *err);

#endif
