/* launcher/peer/join_message.c - see join_message.h */
#include "launcher/peer/join_message.h"

#include "common/err.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

static const char label[] = "ddprun note";

static void put(const struct pack *k, struct seal *s, unsigned char out[JOIN_SIZE])
{
    unsigned char plain[JOIN_PLAIN] = {0};
    memcpy(plain, k->p, k->n < sizeof plain ? k->n : sizeof plain);
    seal_close(s, label, sizeof label, plain, sizeof plain, out);
}

static int get(const unsigned char in[JOIN_SIZE], struct seal *s,
               unsigned char plain[JOIN_PLAIN], struct ddp_err *err)
{
    if (seal_open(s, label, sizeof label, in, JOIN_SIZE, plain) < 0)
        return err_set(err, "its join message is not sealed with our key");
    return 0;
}

/* Cuts texts longer than any host name or reason needs to be. */
static void pack_short(struct pack *k, const char *text, size_t max)
{
    char *cut = text ? xstrndup(text, max) : NULL;
    pack_str(k, cut);
    free(cut);
}

void join_request_seal(const struct join_request *n, struct seal *s,
                       unsigned char out[JOIN_SIZE])
{
    struct pack k = {0};
    pack_u32(&k, n->copies);
    pack_u32(&k, n->slots);
    pack_short(&k, n->host, 255);
    pack_short(&k, n->slots_from, 200);
    put(&k, s, out);
    pack_finish(&k);
}

int join_request_open(const unsigned char in[JOIN_SIZE], struct seal *s,
                      struct join_request *n, struct ddp_err *err)
{
    unsigned char plain[JOIN_PLAIN];
    *n = (struct join_request){0};
    if (get(in, s, plain, err) < 0)
        return -1;
    struct unpack u = {.p = plain, .n = sizeof plain};
    n->copies = unpack_u32(&u);
    n->slots = unpack_u32(&u);
    n->host = unpack_str(&u);
    n->slots_from = unpack_str(&u);
    if (!u.bad && n->host && n->copies > 0 && n->copies < NODES_MAX && n->slots < 1 << 20)
        return 0;
    join_request_finish(n);
    return err_set(err, "its join request is malformed");
}

void join_request_finish(struct join_request *n)
{
    free(n->host);
    free(n->slots_from);
    *n = (struct join_request){0};
}

void join_reply_seal(const struct join_reply *n, struct seal *s,
                     unsigned char out[JOIN_SIZE])
{
    struct pack k = {0};
    pack_u8(&k, n->welcome);
    pack_u32(&k, n->node);
    pack_u32(&k, n->nnodes);
    pack_u32(&k, n->code);
    pack_short(&k, n->why, 600);
    put(&k, s, out);
    pack_finish(&k);
}

int join_reply_open(const unsigned char in[JOIN_SIZE], struct seal *s,
                    struct join_reply *n, struct ddp_err *err)
{
    unsigned char plain[JOIN_PLAIN];
    *n = (struct join_reply){0};
    if (get(in, s, plain, err) < 0)
        return -1;
    struct unpack u = {.p = plain, .n = sizeof plain};
    n->welcome = unpack_u8(&u) != 0;
    n->node = unpack_u32(&u);
    n->nnodes = unpack_u32(&u);
    n->code = unpack_u32(&u);
    n->why = unpack_str(&u);
    if (!u.bad && (n->welcome ? n->node < NODES_MAX : n->why != NULL))
        return 0;
    free(n->why);
    n->why = NULL;
    return err_set(err, "the head's reply is malformed");
}
