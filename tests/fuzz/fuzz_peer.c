/* tests/fuzz/fuzz_peer.c - what is read from a connection before there is a link
 *
 * Input: a byte that chooses the reader, then its bytes: a listener reads the answer to
 * its offer, a caller an offer and a proof, a head JOIN, another ddprun JOINED. The last
 * two come sealed, from one who knows the key. Aborts when bytes without the key are
 * accepted, and when a refusal has no words.
 */
#include "launcher/link/handshake.h"
#include "launcher/peer/join_message.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/sample_message.h"

#include <stdlib.h>

static const struct secret job = {{1, 2, 3}};

static int listen_to(const unsigned char *answer, struct ddp_err *err)
{
    struct handshake h;
    struct link_keys keys;
    unsigned char offer[HANDSHAKE_OFFER], proof[HANDSHAKE_PROOF];
    unsigned node;
    handshake_offer(&h, &job, offer);
    return handshake_check(&h, answer, proof, &node, &keys, err);
}

static int call(const unsigned char *in, struct ddp_err *err)
{
    struct handshake h;
    struct link_keys keys;
    unsigned char answer[HANDSHAKE_ANSWER];
    if (handshake_answer(&h, &job, 7, in, answer, err) < 0)
        return -1;
    return handshake_confirm(&h, in + HANDSHAKE_OFFER, &keys, err);
}

static void open_record(enum msg_type type, const unsigned char *plain,
                        struct ddp_err *err)
{
    static const char label[] = "ddprun join";
    unsigned char sealed[JOIN_SIZE];
    struct seal out = {.key = job}, in = out;
    union msg_any m;
    seal_close(&out, label, sizeof label, plain, JOIN_PLAIN, sealed);
    if (join_message_open(type, sealed, &in, &m, err) == 0)
        msg_finish(type, &m);
    else if (!err->text[0])
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char in[JOIN_PLAIN] = {0};
    struct ddp_err err = {""};
    if (size == 0)
        return 0;
    memcpy(in, data + 1, size - 1 < sizeof in ? size - 1 : sizeof in);
    if (data[0] % 4 > 1)
        open_record(data[0] % 4 == 2 ? MSG_JOIN : MSG_JOINED, in, &err);
    else if ((data[0] % 4 ? call(in, &err) : listen_to(in, &err)) == 0 || !err.text[0])
        abort();
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    struct handshake listener, caller;
    struct secret other = {{9}};
    struct ddp_err err;
    unsigned char bytes[JOIN_PLAIN] = {0};
    size_t used = HANDSHAKE_OFFER;
    handshake_offer(&listener, &job, bytes);
    if (n % 4 == 0) {
        used = HANDSHAKE_ANSWER;
        handshake_answer(&caller, &other, 7, bytes, bytes, &err);
    } else if (n % 4 > 1) {
        enum msg_type type = n % 4 == 2 ? MSG_JOIN : MSG_JOINED;
        union msg_any m;
        struct pack body = {0}, k = {0};
        sample_message(type, &m);
        msg_pack(type, &m, &body);
        pack_u32(&k, (uint32_t)body.n);
        pack_bytes(&k, body.p, body.n);
        used = k.n < sizeof bytes ? k.n : sizeof bytes;
        memcpy(bytes, k.p, used);
        pack_finish(&body);
        pack_finish(&k);
        msg_finish(type, &m);
    }
    if (room < 1 + used)
        return 0;
    data[0] = (uint8_t)(n % 4);
    memcpy(data + 1, bytes, used);
    return 1 + used;
}
