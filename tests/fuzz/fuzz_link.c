/* tests/fuzz/fuzz_link.c - what comes over a link, from either side
 *
 * Input: a byte that chooses the side, then bytes as they come off the wire. Frames are
 * taken out of them as link.c does, and each body is unpacked by its type. Aborts when a
 * message that was accepted is not packed to the same bytes, as there is one way to write
 * each message, and when a refusal has no text.
 */
#include "common/mem.h"
#include "launcher/link/bootstrap.h"
#include "launcher/link/merge.h"
#include "launcher/link/rankmap.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/sample_message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(const char *what, enum msg_type type)
{
    fprintf(stderr, "%s: '%s'\n", what, msg_name(type));
    abort();
}

static void try_map(const struct msg_serve *m)
{
    struct rankmap map;
    struct ddp_err err = {""};
    if (rankmap_read(&map, &m->map, m->nranks % 1000, &err) == 0)
        rankmap_finish(&map);
    else if (!err.text[0])
        fail("a map refused without a word", MSG_SERVE);
}

static void on_part(const struct frame *f, void *arg)
{
    if (f->node >= NODE_ALL || msg_merge(f->type) == MERGE_PASS)
        fail("merged", f->type);
}

static void try_body(const struct frame *f)
{
    union msg_any m;
    struct pack k = {0};
    struct ddp_err err = {""};
    if (msg_unpack(f, &m, &err) < 0) {
        if (!err.text[0])
            fail("refused without a word", f->type);
        return;
    }
    msg_pack(f->type, &m, &k);
    if (k.n != f->size || (k.n > 0 && memcmp(k.p, f->body, k.n) != 0))
        fail("other bytes", f->type);
    if (f->type == MSG_SERVE)
        try_map(&m.serve);
    struct strv map = {0};
    if (f->type == MSG_MAP &&
        rankmap_unpack(m.map.data, m.map.ndata, m.map.size % 100000, &map, &err) < 0 &&
        !err.text[0])
        fail("a map refused without a word", MSG_MAP);
    strv_finish(&map);
    pack_finish(&k);
    msg_finish(f->type, &m);
    if (f->type == MSG_MERGED && merge_split(f, on_part, NULL, &err) < 0 && !err.text[0])
        fail("refused without a word", f->type);
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

static const char bootstrap[] =
    "\1ddprun-agent 1\nnode 3\nname n3\ncall 10.0.0.1 1\nend\n";

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    enum msg_type type = (enum msg_type)(n % MSG_TYPES); /* 0: bootstrap lines */
    if (type == MSG_NONE) {
        memcpy(data, bootstrap,
               sizeof bootstrap - 1 < room ? sizeof bootstrap - 1 : room);
        return sizeof bootstrap - 1 < room ? sizeof bootstrap - 1 : room;
    }
    union msg_any m;
    struct pack k = {0};
    sample_message(type, &m);
    msg_pack(type, &m, &k);
    msg_finish(type, &m);
    size_t size = 1 + FRAME_HEAD + k.n;
    if (size > room)
        size = 0;
    if (size > 0) {
        data[0] = sample_way(type) & FRAME_UP;
        frame_head(data + 1, type, 0, k.n);
        if (k.n > 0)
            memcpy(data + 1 + FRAME_HEAD, k.p, k.n);
    }
    pack_finish(&k);
    return size;
}
