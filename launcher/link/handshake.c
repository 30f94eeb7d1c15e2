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

/* What the caller proves covers its number, so that nobody can speak for another node. */
static void caller_proof(const struct secret *key, const struct secret *listener,
                         const unsigned char node_and_nonce[NODE + SECRET_SIZE],
                         struct secret *proof)
{
    secret_derive(key, "ddprun caller", listener->bytes, SECRET_SIZE, node_and_nonce,
                  NODE + SECRET_SIZE, proof);
}

static void listener_proof(const struct secret *key, const struct secret *caller,
                           const struct secret *listener, struct secret *proof)
{
    secret_derive(key, "ddprun listener", caller->bytes, SECRET_SIZE, listener->bytes,
                  SECRET_SIZE, proof);
}

static void derive_keys(const struct secret *key, const struct secret *listener,
                        const struct secret *caller, struct seal *down, struct seal *up)
{
    *down = *up = (struct seal){0};
    secret_derive(key, "ddprun down", listener->bytes, SECRET_SIZE, caller->bytes,
                  SECRET_SIZE, &down->key);
    secret_derive(key, "ddprun up", listener->bytes, SECRET_SIZE, caller->bytes,
                  SECRET_SIZE, &up->key);
}

int handshake_offer(struct handshake *h, const struct secret *key,
                    unsigned char offer[HANDSHAKE_OFFER], struct ddp_err *err)
{
    *h = (struct handshake){.key = *key};
    if (secret_make(&h->here, err) < 0)
        return -1;
    put_head(offer);
    memcpy(offer + HEAD, h->here.bytes, SECRET_SIZE);
    return 0;
}

int handshake_check(struct handshake *h, const unsigned char answer[HANDSHAKE_ANSWER],
                    unsigned char proof[HANDSHAKE_PROOF], unsigned *node,
                    struct link_keys *keys, struct ddp_err *err)
{
    struct secret given, right;
    if (check_head(answer, err) < 0)
        return -1;
    caller_proof(&h->key, &h->here, answer + HEAD, &right);
    memcpy(h->there.bytes, answer + HEAD + NODE, SECRET_SIZE);
    memcpy(given.bytes, answer + HEAD + NODE + SECRET_SIZE, SECRET_SIZE);
    if (!secret_equal(&given, &right))
        return err_set(err, "it does not know the key of this job");
    *node = h->node = (unsigned)(answer[HEAD] << 8 | answer[HEAD + 1]);
    listener_proof(&h->key, &h->there, &h->here, &right);
    memcpy(proof, right.bytes, SECRET_SIZE);
    derive_keys(&h->key, &h->here, &h->there, &keys->out, &keys->in);
    return 0;
}

int handshake_answer(struct handshake *h, const struct secret *key, unsigned node,
                     const unsigned char offer[HANDSHAKE_OFFER],
                     unsigned char answer[HANDSHAKE_ANSWER], struct ddp_err *err)
{
    *h = (struct handshake){.key = *key, .node = node};
    struct secret proof;
    if (check_head(offer, err) < 0 || secret_make(&h->here, err) < 0)
        return -1;
    memcpy(h->there.bytes, offer + HEAD, SECRET_SIZE);
    put_head(answer);
    answer[HEAD] = (unsigned char)(node >> 8);
    answer[HEAD + 1] = (unsigned char)node;
    memcpy(answer + HEAD + NODE, h->here.bytes, SECRET_SIZE);
    caller_proof(key, &h->there, answer + HEAD, &proof);
    memcpy(answer + HEAD + NODE + SECRET_SIZE, proof.bytes, SECRET_SIZE);
    return 0;
}

int handshake_confirm(struct handshake *h, const unsigned char proof[HANDSHAKE_PROOF],
                      struct link_keys *keys, struct ddp_err *err)
{
    struct secret given, right;
    memcpy(given.bytes, proof, SECRET_SIZE);
    listener_proof(&h->key, &h->here, &h->there, &right);
    if (!secret_equal(&given, &right))
        return err_set(err, "the listener does not know the key of this job");
    derive_keys(&h->key, &h->there, &h->here, &keys->in, &keys->out);
    return 0;
}
