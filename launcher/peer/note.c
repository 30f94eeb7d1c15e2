/* launcher/peer/note.c - see note.h */
#include "launcher/peer/note.h"

#include "common/err.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

static const char label[] = "ddprun note";

static void put(const struct pack *k, struct seal *s, unsigned char out[NOTE_SIZE])
{
    unsigned char plain[NOTE_PLAIN] = {0};
    memcpy(plain, k->p, k->n < sizeof plain ? k->n : sizeof plain);
    seal_close(s, label, sizeof label, plain, sizeof plain, out);
}

static int get(const unsigned char in[NOTE_SIZE], struct seal *s,
               unsigned char plain[NOTE_PLAIN], struct ddp_err *err)
{
    if (seal_open(s, label, sizeof label, in, NOTE_SIZE, plain) < 0)
        return err_set(err, "its first words are not sealed with our key");
    return 0;
}

/* A name that is too long for a note is none of a machine's. */
static void pack_short(struct pack *k, const char *text, size_t max)
{
    char *cut = text ? xstrndup(text, max) : NULL;
    pack_str(k, cut);
    free(cut);
}

void note_here_seal(const struct note_here *n, struct seal *s,
                    unsigned char out[NOTE_SIZE])
{
    struct pack k = {0};
    pack_u32(&k, n->copies);
    pack_u32(&k, n->slots);
    pack_short(&k, n->host, 255);
    pack_short(&k, n->slots_from, 200);
    put(&k, s, out);
    pack_finish(&k);
}

int note_here_open(const unsigned char in[NOTE_SIZE], struct seal *s, struct note_here *n,
                   struct ddp_err *err)
{
    unsigned char plain[NOTE_PLAIN];
    *n = (struct note_here){0};
    if (get(in, s, plain, err) < 0)
        return -1;
    struct unpack u = {.p = plain, .n = sizeof plain};
    n->copies = unpack_u32(&u);
    n->slots = unpack_u32(&u);
    n->host = unpack_str(&u);
    n->slots_from = unpack_str(&u);
    if (!u.bad && n->host && n->copies > 0 && n->copies < NODES_MAX && n->slots < 1 << 20)
        return 0;
    note_here_finish(n);
    return err_set(err, "its first words make no sense");
}

void note_here_finish(struct note_here *n)
{
    free(n->host);
    free(n->slots_from);
    *n = (struct note_here){0};
}

void note_answer_seal(const struct note_answer *n, struct seal *s,
                      unsigned char out[NOTE_SIZE])
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

int note_answer_open(const unsigned char in[NOTE_SIZE], struct seal *s,
                     struct note_answer *n, struct ddp_err *err)
{
    unsigned char plain[NOTE_PLAIN];
    *n = (struct note_answer){0};
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
    return err_set(err, "the head's answer makes no sense");
}
