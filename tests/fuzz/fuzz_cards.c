/* tests/fuzz/fuzz_cards.c - the cards of the other ranks of a group
 *
 * Input: a byte with the number of ranks, and their cards. Aborts when a layout that was
 * accepted counts ranks wrongly or has no port, and when a refusal has no words.
 */
#include "tests/fuzz/fuzz.h"

#include "common/sock_addr.h"
#include "worker/group/layout.h"

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
            if (m->host != h || m->local != i || sock_port(&m->addr.sa) == 0)
                abort();
        }
        all += n;
    }
    if (all != l->size)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct card cards[RANKS] = {0};
    struct layout l;
    struct ddp_err err = {""};
    if (size < 1 || size > 8192)
        return 0;
    int ranks = 1 + data[0] % RANKS;
    memcpy(cards, data + 1, size - 1 < sizeof cards ? size - 1 : sizeof cards);
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
    size_t used = 1;
    data[0] = (uint8_t)n;
    for (unsigned r = 0; r <= n % RANKS && used + sizeof(struct card) <= room; r++) {
        struct card card = {.magic = "ddpcard",
                            .host = r / 2,
                            .host_name = "n",
                            .addr = "10.0.0.1",
                            .port = 4711};
        memcpy(data + used, &card, sizeof card);
        used += sizeof card;
    }
    return used;
}
