/* launcher/agent/store_host.h - the job's store, in the loop of the master node's agent
 *
 * The server is the rendezvous room's; added here is who is admitted: a connection is
 * looked up in this machine's kernel, and one that it does not know is asked about at the
 * agents of the machines that have its address (`ask`, answered by store_host_vouched()).
 */
#ifndef LAUNCHER_AGENT_STORE_HOST_H
#define LAUNCHER_AGENT_STORE_HOST_H

#include "common/loop.h"
#include "launcher/link/message.h"

struct admission;
struct store_host;

/* With `want->serve` the store listens when this returns; without it only a free port has
 * been found. `admission` is borrowed. */
struct store_host *store_host_create(struct loop *loop, const struct msg_store *want,
                                     struct admission *admission,
                                     void (*ask)(const struct msg_vouch *v, void *arg),
                                     void *arg, struct ddp_err *err);
void store_host_destroy(struct store_host *h);

/* For one more attempt of the job: nobody reads what an earlier one has written; without
 * `serve` another free port. */
int store_host_renew(struct store_host *h, struct ddp_err *err);

const char *store_host_addr(const struct store_host *h); /* for MASTER_ADDR */
int store_host_port(const struct store_host *h);

/* The answer to `ask`. */
void store_host_vouched(struct store_host *h, const struct msg_vouched *answer);

#endif
