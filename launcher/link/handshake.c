/* launcher/link/handshake.c - see handshake.h */
#include "launcher/link/handshake.h"

#include "common/err.h"
#include "launcher/link/message.h"

#include <string.h>

static const char magic[6] = "DDPRUN";
enum { HEAD = 8, NODE = 2 };

static void put_head(unsigned char *p)
{
    memcpy(p, magic, sizeof magic);
    p[6] = LINK_PROTOCOL >> 8;
    p[7] = LINK_PROTOCOL & 0xff;
}

static int check_head(const unsigned char *p, struct ddp_err *err)
{
    if (memcmp(p, magic, sizeof magic) != 0)
        return err_set(err, "the other side is not a ddprun");
    int version = p[6] << 8 | p[7];
    if (version != LINK_PROTOCOL)
        return err_set(err,
                       "the other side speaks protocol %d, this one %d: versions of "
                       "ddprun differ",
                       version, LINK_PROTOCOL);
    return 0;
}

void handshake_node_key(const struct secret *job, unsigned node, struct secret *key)
{
    const unsigned char number[NODE] = {(unsigned char)(node >> 8), (unsigned char)node};
    secret_derive(job, "ddprun node", number, sizeof number, NULL, 0, key);
}

/* The caller's proof covers its node number: it cannot impersonate another node. */
static void caller_proof(const struct secret *key, const unsigned char *listener,
                         const unsigned char node_and_public[NODE + SECRET_SIZE],
                         struct secret *proof)
{
    secret_derive(key, "ddprun caller", listener, SECRET_SIZE, node_and_public,
                  NODE + SECRET_SIZE, proof);
}

static void listener_proof(const struct secret *key, const unsigned char *caller,
                           const unsigned char *listener, struct secret *proof)
{
    secret_derive(key, "ddprun listener", caller, SECRET_SIZE, listener, SECRET_SIZE,
                  proof);
}

/* The link's keys depend on both the ephemeral secrets and the node's key. */
static int derive_keys(struct handshake *h, bool listens, struct seal *down,
                       struct seal *up, struct ddp_err *err)
{
    struct secret secret_down, secret_up;
    if (exchange_finish(&h->own, listens, h->theirs, &secret_down, &secret_up) < 0)
        return err_set(err, "its public key is invalid");
    *down = *up = (struct seal){0};
    secret_derive(&h->key, "ddprun down", secret_down.bytes, SECRET_SIZE, NULL, 0,
                  &down->key);
    secret_derive(&h->key, "ddprun up", secret_up.bytes, SECRET_SIZE, NULL, 0, &up->key);
    secret_wipe(&secret_down, sizeof secret_down);
    secret_wipe(&secret_up, sizeof secret_up);
    return 0;
}

void handshake_offer(struct handshake *h, const struct secret *job,
                     unsigned char offer[HANDSHAKE_OFFER])
{
    *h = (struct handshake){.key = *job};
    exchange_make(&h->own);
    put_head(offer);
    memcpy(offer + HEAD, h->own.public, SECRET_SIZE);
}

int handshake_check(struct handshake *h, const unsigned char answer[HANDSHAKE_ANSWER],
                    unsigned char proof[HANDSHAKE_PROOF], unsigned *node,
                    struct link_keys *keys, struct ddp_err *err)
{
    struct secret given, right, job = h->key;
    if (check_head(answer, err) < 0)
        return -1;
    *node = (unsigned)(answer[HEAD] << 8 | answer[HEAD + 1]);
    handshake_node_key(&job, *node, &h->key);
    secret_wipe(&job, sizeof job);
    caller_proof(&h->key, h->own.public, answer + HEAD, &right);
    memcpy(h->theirs, answer + HEAD + NODE, SECRET_SIZE);
    memcpy(given.bytes, answer + HEAD + NODE + SECRET_SIZE, SECRET_SIZE);
    if (!secret_equal(&given, &right))
        return err_set(err, "it does not know the key of this job");
    listener_proof(&h->key, h->theirs, h->own.public, &right);
    memcpy(proof, right.bytes, SECRET_SIZE);
    return derive_keys(h, true, &keys->out, &keys->in, err);
}

int handshake_answer(struct handshake *h, const struct secret *key, unsigned node,
                     const unsigned char offer[HANDSHAKE_OFFER],
                     unsigned char answer[HANDSHAKE_ANSWER], struct ddp_err *err)
{
    *h = (struct handshake){.key = *key};
    struct secret proof;
    if (check_head(offer, err) < 0)
        return -1;
    exchange_make(&h->own);
    memcpy(h->theirs, offer + HEAD, SECRET_SIZE);
    put_head(answer);
    answer[HEAD] = (unsigned char)(node >> 8);
    answer[HEAD + 1] = (unsigned char)node;
    memcpy(answer + HEAD + NODE, h->own.public, SECRET_SIZE);
    caller_proof(key, h->theirs, answer + HEAD, &proof);
    memcpy(answer + HEAD + NODE + SECRET_SIZE, proof.bytes, SECRET_SIZE);
    return 0;
}

int handshake_confirm(struct handshake *h, const unsigned char proof[HANDSHAKE_PROOF],
                      struct link_keys *keys, struct ddp_err *err)
{
    struct secret given, right;
    memcpy(given.bytes, proof, SECRET_SIZE);
    listener_proof(&h->key, h->own.public, h->theirs, &right);
    if (!secret_equal(&given, &right))
        return err_set(err, "the listener does not know the key of this job");
    return derive_keys(h, false, &keys->in, &keys->out, err);
}
