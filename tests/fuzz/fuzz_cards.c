/* tests/fuzz/fuzz_cards.c - the cards of the other ranks of a group, and their file
 *
 * Input: an even byte, one with the number of ranks, and cards with NULs between; or an
 * odd one and the file of file:///PATH. Aborts when a layout that was accepted counts
 * ranks wrongly or names a port that there is not, and when a refusal has no words.
 */
#include "common/duration.h"
#include "common/mem.h"
#include "tests/fuzz/fuzz.h"
#include "worker/group/bootstrap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

static void read_cards(const uint8_t *data, size_t size)
{
    struct ddp_value *cards = xcalloc(RANKS, sizeof *cards);
    struct layout l;
    struct ddp_err err = {""};
    int ranks = 1 + data[0] % RANKS;
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
}

/* A group of one: it does not wait for others. */
static void read_file(const uint8_t *data, size_t size)
{
    static char path[] = "/tmp/fuzz-cards-XXXXXX";
    struct bootstrap m = {
        .place = path, .name = "g", .size = 1, .deadline_ms = now_ms() + 5000};
    struct ddp_value card = {0};
    struct ddp_err err = {""};
    strcpy(path + strlen(path) - 6, "XXXXXX");
    int fd = mkstemp(path);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size)
        abort();
    close(fd);
    if (bootstrap_file(&m, "mine", &card, &err) == 0) {
        if (card.size != 4 || strcmp(card.data, "mine") != 0)
            abort();
        free(card.data);
    } else if (!err.text[0]) {
        abort();
    }
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2 || size > 8192)
        return 0;
    if (data[0] % 2)
        read_file(data + 1, size - 1);
    else
        read_cards(data + 1, size - 1);
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    static const char file[] =
        "1ddpgroup meeting 2, 1 ranks, g\n1@127.0.0.1 00000000deadbeef\n";
    struct listeners l = {.tcp_port = 4711, .unix_name = "ddp-1"};
    size_t used = sizeof file - 1;
    memcpy(data, file, used);
    if (n % 4 != 0) {
        data[0] = 0;
        data[1] = (uint8_t)n;
        used = 2;
        for (unsigned r = 0; r <= n % RANKS; r++) {
            char *card = card_make_as(r / 2 ? "host-b" : "host-a", "n", "10.0.0.1", &l);
            memcpy(data + used, card, strlen(card) + 1);
            used += strlen(card) + 1;
            free(card);
        }
    }
    return used < room ? used : room;
}
