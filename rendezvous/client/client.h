/* rendezvous/client/client.h - what client.c and wait.c share behind ddp_store_* */
#ifndef RENDEZVOUS_CLIENT_CLIENT_H
#define RENDEZVOUS_CLIENT_CLIENT_H

#include "include/ddprun/store.h"
#include "rendezvous/client/exchange.h"

struct ddp_store {
    struct exchange x;
    int64_t timeout_ms; /* of each call */
    /* The server answers strictly in order, also after a WAIT: so a wait and the request
     * after it are sent together. Our server does. PyTorch's answers later requests at
     * once and the wait when it ends: there they are sent one by one. */
    bool in_order;
    bool queues; /* it has queues */
};

/* Begin a call: set its deadline, and an empty request. */
int store_begin(struct ddp_store *s, struct ddp_err *err);
/* Send the request and wait for the first byte of its reply. */
int store_ask(struct ddp_store *s, struct ddp_err *err);
int store_read_u8(struct ddp_store *s, unsigned char *v, struct ddp_err *err);
int store_read_i64(struct ddp_store *s, int64_t *v, struct ddp_err *err);
int store_read_value(struct ddp_store *s, struct ddp_value *value, struct ddp_err *err);

/* Is it within the store's limits? If not, with an error. */
int store_check_key(const char *key, struct ddp_err *err);
int store_check_value(const char *key, size_t size, struct ddp_err *err);
int store_check_keys(const char *const *keys, size_t nkeys, struct ddp_err *err);

/* Before the first use of a queue: does the store have any? If not it would close the
 * connection at a push, and let a pop wait. Costs a round trip with PyTorch's, once. */
int store_check_queues(struct ddp_store *s, const char *key, struct ddp_err *err);

/* The number of keys[from .. nkeys) that fit into one request, by number and bytes. */
size_t store_chunk(const char *const *keys, size_t from, size_t nkeys);
void store_put_keys(struct ddp_store *s, enum wire_op op, const char *const *keys,
                    size_t nkeys);

#endif
