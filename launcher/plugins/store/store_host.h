/* launcher/plugins/store/store_host.h - the job's store, in the loop of the master node's
 * agent
 *
 * The server is that of rendezvous/; added here is admission: a connection is looked up
 * in this machine's kernel, and if it comes from elsewhere, the agents of the nodes with
 * its address are asked (`ask`, answered by store_host_vouched()).
 */
#ifndef LAUNCHER_PLUGINS_STORE_STORE_HOST_H
#define LAUNCHER_PLUGINS_STORE_STORE_HOST_H

#include "common/loop.h"
#include "launcher/link/message.h"

struct admission;
struct store_host;

/* With `want->serve` the store listens when this returns; otherwise only a free port is
 * chosen. `admission` is borrowed. */
struct store_host *store_host_create(struct loop *loop, const struct msg_store *want,
                                     struct admission *admission,
                                     void (*ask)(const struct msg_vouch *v, void *arg),
                                     void *arg, struct ddp_err *err);
void store_host_destroy(struct store_host *h);

/* For another attempt of the job: drops the keys of the earlier one; without `serve`,
 * chooses another free port. */
int store_host_renew(struct store_host *h, struct ddp_err *err);

const char *store_host_addr(const struct store_host *h); /* for MASTER_ADDR */
int store_host_port(const struct store_host *h);

/* A port of this machine, reserved for a server of rank 0 beside the store (JAX's). */
int store_host_rank0_port(const struct store_host *h);

/* The answer to `ask`. */
void store_host_vouched(struct store_host *h, const struct msg_vouched *answer);

#endif
