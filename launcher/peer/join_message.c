/* launcher/peer/join_message.c - see join_message.h */
#include "launcher/peer/join_message.h"

#include "common/err.h"
#include "common/scoped.h"

#include <stdlib.h>
#include <string.h>

static const char label[] = "ddprun join";

void join_message_seal(enum msg_type type, const void *m, struct seal *s,
                       unsigned char out[JOIN_SIZE])
{
    unsigned char plain[JOIN_PLAIN] = {0};
    SCOPED(pack_finish) struct pack body = {0}, k = {0};
    msg_pack(type, m, &body);
    pack_u32(&k, (uint32_t)body.n);
    pack_bytes(&k, body.p, body.n);
    if (k.n > sizeof plain)
        abort(); /* the senders cut their texts */
    memcpy(plain, k.p, k.n);
    seal_close(s, label, sizeof label, plain, sizeof plain, out);
}

int join_message_open(enum msg_type type, const unsigned char in[JOIN_SIZE],
                      struct seal *s, void *m, struct ddp_err *err)
{
    unsigned char plain[JOIN_PLAIN];
    if (seal_open(s, label, sizeof label, in, JOIN_SIZE, plain) < 0)
        return err_set(err, "its join message is not sealed with our key");
    struct unpack u = {.p = plain, .n = sizeof plain};
    struct frame f = {.type = type, .size = unpack_u32(&u)};
    f.body = unpack_bytes(&u, f.size);
    return f.body ? msg_unpack(&f, m, err)
                  : err_set(err, "its join message is malformed");
}
