/* launcher/agent/hosting.h - the job's store, in the loop of the master node's agent
 *
 * The server is the rendezvous room's; added here is who is admitted: a connection is
 * looked up in this machine's kernel, and one that it does not know is asked about at the
 * agents of the machines that have its address (`ask`, answered by hosting_vouched()).
 */
#ifndef LAUNCHER_AGENT_HOSTING_H
#define LAUNCHER_AGENT_HOSTING_H

#include "common/loop.h"
#include "launcher/link/message.h"

struct admission;
struct hosting;

/* With `want->serve` the store listens when this returns; without it only a free port has
 * been found. `admission` is borrowed. */
struct hosting *hosting_create(struct loop *loop, const struct msg_store *want,
                               struct admission *admission,
                               void (*ask)(const struct msg_vouch *v, void *arg),
                               void *arg, struct ddp_err *err);
void hosting_destroy(struct hosting *h);

/* For one more attempt of the job: nobody reads what an earlier one has written; without
 * `serve` another free port. */
int hosting_renew(struct hosting *h, struct ddp_err *err);

const char *hosting_addr(const struct hosting *h); /* for MASTER_ADDR */
int hosting_port(const struct hosting *h);

/* The answer to `ask`. */
void hosting_vouched(struct hosting *h, const struct msg_vouched *answer);

#endif
