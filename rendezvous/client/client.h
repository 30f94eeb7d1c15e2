/* rendezvous/client/client.h - what client.c and wait.c share behind ddp_store_* */
#ifndef RENDEZVOUS_CLIENT_CLIENT_H
#define RENDEZVOUS_CLIENT_CLIENT_H

#include "include/ddprun/store.h"
#include "rendezvous/client/exchange.h"

struct ddp_store {
    struct exchange x;
    int64_t timeout_ms; /* of each call */
    /* The server answers strictly in order, what stands behind a WAIT included, so that a
     * wait and what follows it can leave together. Ours does. PyTorch's answers later
     * requests at once and the wait whenever it ends: there they go one by one. */
    bool in_order;
};

/* A call begins: its deadline, an empty request. */
int store_begin(struct ddp_store *s, struct ddp_err *err);
/* Sends the request and waits for its answer to begin. */
int store_ask(struct ddp_store *s, struct ddp_err *err);
int store_read_u8(struct ddp_store *s, unsigned char *v, struct ddp_err *err);
int store_read_i64(struct ddp_store *s, int64_t *v, struct ddp_err *err);
int store_read_value(struct ddp_store *s, struct ddp_value *value, struct ddp_err *err);

/* Within what the store takes? Otherwise the error says so. */
int store_check_key(const char *key, struct ddp_err *err);
int store_check_value(const char *key, size_t size, struct ddp_err *err);
int store_check_keys(const char *const *keys, size_t nkeys, struct ddp_err *err);

/* How many of keys[from .. nkeys) go into one request: bounded in number and in bytes. */
size_t store_chunk(const char *const *keys, size_t from, size_t nkeys);
void store_put_keys(struct ddp_store *s, enum wire_op op, const char *const *keys,
                    size_t nkeys);

#endif
