/* tests/fuzz/fuzz_link.c - what comes over a link, from either side
 *
 * Input: a byte that chooses the side, then bytes as they come off the wire. Frames are
 * taken out of them as link.c does, and each body is unpacked by its type. Aborts when a
 * message that was accepted is not the same after packing and unpacking it again, and
 * when a refusal has no text.
 */
#include "common/mem.h"
#include "launcher/link/bootstrap.h"
#include "launcher/link/message.h"
#include "launcher/link/rankmap.h"
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what, enum msg_type type)
{
    fprintf(stderr, "%s: '%s'\n", what, msg_name(type));
    abort();
}

/* Unpack; when that works, packing again has to give the same bytes: there is one way to
 * write each message. */
#define TRY(kind, finish)                                \
    do {                                                 \
        struct kind m = {0};                             \
        struct pack k = {0};                             \
        struct ddp_err err = {""};                       \
        if (kind##_unpack(f, &m, &err) < 0) {            \
            if (!err.text[0])                            \
                fail("refused without a word", f->type); \
            return;                                      \
        }                                                \
        kind##_pack(&m, &k);                             \
        if (k.n != f->size)                              \
            fail("another size", f->type);               \
        pack_finish(&k);                                 \
        finish(&m);                                      \
    } while (0)

static void msg_fence_pack(const struct msg_fence *m, struct pack *k)
{
    msg_fence_pack_head(m, k);
    pack_bytes(k, m->data, m->ndata);
}

static void msg_peer_pack(const struct msg_peer *m, struct pack *k)
{
    msg_peer_pack_head(m, k);
    pack_bytes(k, m->data, m->ndata);
}

static void try_serve(struct msg_serve *m)
{
    struct rankmap map;
    struct ddp_err err = {""};
    if (rankmap_read(&map, &m->map, m->nranks % 1000, &err) == 0)
        rankmap_finish(&map);
    else if (!err.text[0])
        fail("a map refused without a word", MSG_SERVE);
    msg_serve_finish(m);
}

static void try_body(const struct frame *f)
{
    switch ((int)f->type) {
    case MSG_HELLO:
        TRY(msg_hello, msg_hello_finish);
        break;
    case MSG_HOSTS:
        TRY(msg_hosts, msg_hosts_finish);
        break;
    case MSG_PROBE:
        TRY(msg_probe, msg_probe_finish);
        break;
    case MSG_FOUND:
        TRY(msg_found, msg_found_finish);
        break;
    case MSG_FENCE:
        TRY(msg_fence, msg_fence_finish);
        break;
    case MSG_PEER:
        TRY(msg_peer, (void));
        break;
    case MSG_ABORT:
        TRY(msg_abort, msg_abort_finish);
        break;
    case MSG_SERVE:
        TRY(msg_serve, try_serve);
        break;
    case MSG_MEMBER:
        TRY(msg_member, (void));
        break;
    case MSG_STORE:
        TRY(msg_store, msg_store_finish);
        break;
    case MSG_JOB:
        TRY(msg_job, msg_job_finish);
        break;
    case MSG_SHARE:
        TRY(msg_share, msg_share_finish);
        break;
    case MSG_CANNOT:
        TRY(msg_cannot, msg_cannot_finish);
        break;
    case MSG_LOST:
    case MSG_UNREACHED:
        TRY(msg_node, msg_node_finish);
        break;
    case MSG_EXIT:
        TRY(msg_exit, (void));
        break;
    case MSG_VOUCH:
        TRY(msg_vouch, (void));
        break;
    case MSG_VOUCHED:
        TRY(msg_vouched, msg_vouched_finish);
        break;
    default:
        break; /* a number or plain bytes */
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    enum frame_way way = data[0] & 1 ? FRAME_UP : FRAME_DOWN;
    size_t at = 1;
    for (;;) {
        struct frame f = {0};
        struct ddp_err err = {""};
        /* exactly the bytes that are there, so that a sanitizer sees one too far */
        uint8_t *exact = xmemdup(data + at, size - at);
        long n = frame_parse(exact, size - at, way, &f, &err);
        if (n > 0)
            try_body(&f);
        free(exact);
        if (n < 0 && !err.text[0])
            fail("refused without a word", f.type);
        if (n <= 0)
            break;
        at += (size_t)n;
    }
    char *text = xstrndup((const char *)data + 1, size - 1);
    struct bootstrap s = {0};
    struct ddp_err err = {""};
    if (bootstrap_parse(text, &s, &err) < 0 && !err.text[0])
        fail("bootstrap refused without a word", 0);
    bootstrap_finish(&s);
    free(text);
    return 0;
}

static void seed_job(struct pack *k)
{
    struct msg_job m = {.wdir = xstrdup("/"), .id = xstrdup("1"), .nranks = 2};
    m.master_addr = xstrdup("10.0.0.1");
    strv_push(&m.argv, "true");
    strv_push(&m.env, "A=1");
    msg_job_pack(&m, k);
    msg_job_finish(&m);
}

static void seed_hello(struct pack *k)
{
    struct msg_hello m = {
        .protocol = LINK_PROTOCOL, .version = xstrdup("1"), .hostname = xstrdup("n1")};
    strv_push(&m.addrs, "10.0.0.1");
    msg_hello_pack(&m, k);
    msg_hello_finish(&m);
}

static void seed_share(struct pack *k)
{
    struct share_rank r = {.rank = 1};
    struct msg_share m = {.host = (char[]){"n1"}, .nlocal = 1, .ranks = &r};
    msg_share_pack(&m, k);
}

static void seed_hosts(struct pack *k)
{
    struct host h = {.name = (char[]){"n1"}};
    struct msg_hosts m = {.width = 2,
                          .agent = (char[]){"/a"},
                          .ssh = (char[]){"ssh"},
                          .nhosts = 1,
                          .hosts = &h};
    msg_hosts_pack(&m, k);
}

static void seed_exit(struct pack *k)
{
    msg_exit_pack(&(struct msg_exit){.rank = 1, .status = 9}, k);
}

static void seed_probe(struct pack *k)
{
    struct msg_probe m = {.phase = 2,
                          .wdir = (char[]){"/home"},
                          .peer = (char[]){"n2"},
                          .addr = (char[]){"10.0.0.2"},
                          .port = 4711};
    strv_push(&m.argv, "./train");
    strv_push(&m.names, "n1");
    msg_probe_pack(&m, k);
    strv_finish(&m.argv);
    strv_finish(&m.names);
}

static void seed_found(struct pack *k)
{
    struct msg_found m = {.check = 3,
                          .number = -1,
                          .item = (char[]){"libm.so.6"},
                          .value = (char[]){"/lib/libm.so.6"}};
    msg_found_pack(&m, k);
}

static void seed_fence(struct pack *k)
{
    struct msg_fence m = {.key = (const uint8_t *)"k",
                          .nkey = 1,
                          .nodes = (uint32_t[]){0, 2},
                          .nnodes = 2,
                          .data = (const uint8_t *)"cards",
                          .ndata = 5};
    msg_fence_pack(&m, k);
}

static void seed_serve(struct pack *k)
{
    struct msg_serve m = {.nspace = (char[]){"job"},
                          .host = (char[]){"n1"},
                          .uri = (char[]){"u"},
                          .tmpdir = (char[]){"/tmp"},
                          .nranks = 4};
    strv_push(&m.map, "0-1,3 n1");
    strv_push(&m.map, "2 n2");
    msg_serve_pack(&m, k);
    strv_finish(&m.map);
}

static const struct {
    enum msg_type type;
    enum frame_way way;
    void (*pack)(struct pack *k);
} seeds[] = {
    {MSG_JOB, FRAME_DOWN, seed_job},     {MSG_HELLO, FRAME_UP, seed_hello},
    {MSG_SHARE, FRAME_DOWN, seed_share}, {MSG_HOSTS, FRAME_DOWN, seed_hosts},
    {MSG_EXIT, FRAME_UP, seed_exit},     {MSG_PROBE, FRAME_DOWN, seed_probe},
    {MSG_FOUND, FRAME_UP, seed_found},   {MSG_FENCE, FRAME_UP, seed_fence},
    {MSG_SERVE, FRAME_DOWN, seed_serve},
};

static const char bootstrap[] = "\1ddprun-agent 1\nnode 3\nname n3\ncall 10.0.0.1 1\nend\n";

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    if (n % (ARRAY_LEN(seeds) + 1) == ARRAY_LEN(seeds)) {
        memcpy(data, bootstrap, sizeof bootstrap - 1 < room ? sizeof bootstrap - 1 : room);
        return sizeof bootstrap - 1 < room ? sizeof bootstrap - 1 : room;
    }
    const size_t i = n % (ARRAY_LEN(seeds) + 1);
    struct pack k = {0};
    seeds[i].pack(&k);
    size_t size = 1 + FRAME_HEAD + k.n;
    if (size > room)
        size = 0;
    if (size > 0) {
        data[0] = seeds[i].way == FRAME_UP;
        frame_head(data + 1, seeds[i].type, 0, k.n);
        memcpy(data + 1 + FRAME_HEAD, k.p, k.n);
    }
    pack_finish(&k);
    return size;
}
