/* tests/fuzz/fuzz_cards.c - the cards of the other ranks of a group
 *
 * Input: a byte with the number of ranks, and cards with NULs between. Aborts when a
 * layout that was accepted counts ranks wrongly or names a port that there is not, and
 * when a refusal has no words.
 */
#include "common/mem.h"
#include "tests/fuzz/fuzz.h"
#include "worker/group/bootstrap.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 6 };

static void check(const struct layout *l)
{
    int all = 0, n;
    for (int h = 0; h < l->nhosts; h++) {
        const int *ranks = layout_host(l, h, &n);
        for (int i = 0; i < n; i++) {
            const struct member *m = &l->members[ranks[i]];
            if (m->host != h || m->local != i || m->port <= 0 || m->port > 65535)
                abort();
        }
        all += n;
    }
    if (all != l->size)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ddp_value *cards;
    struct layout l;
    struct ddp_err err = {""};
    if (size < 1 || size > 8192)
        return 0;
    int ranks = 1 + data[0] % RANKS;
    cards = xcalloc(RANKS, sizeof *cards);
    const uint8_t *at = data + 1, *end = data + size;
    for (int r = 0; r < ranks; r++) {
        const uint8_t *stop = at < end ? memchr(at, '\0', (size_t)(end - at)) : NULL;
        size_t n = (size_t)((stop ? stop : end) - at);
        card_copy(&cards[r], (const char *)at, n);
        at += stop ? n + 1 : n;
    }
    if (layout_from_cards(&l, data[0] / RANKS % ranks, ranks, cards, &err) == 0) {
        check(&l);
        layout_finish(&l);
    } else if (!err.text[0]) {
        abort();
    }
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    struct listeners l = {.tcp_port = 4711, .unix_name = "ddp-1"};
    size_t used = 1;
    data[0] = (uint8_t)n;
    for (unsigned r = 0; r <= n % RANKS; r++) {
        char *card = card_make_as(r / 2 ? "host-b" : "host-a", "n", "10.0.0.1", &l);
        memcpy(data + used, card, strlen(card) + 1);
        used += strlen(card) + 1;
        free(card);
    }
    return used < room ? used : room;
}
