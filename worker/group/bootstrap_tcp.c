/* worker/group/bootstrap_tcp.c - tcp://host:port: rank 0 collects all cards
 *
 * Each other rank connects and sends: magic, rank, size, name, card. Rank 0 checks rank
 * and size, and when all have connected sends every rank each card's size and text.
 *
 * All numbers are big-endian. A connection that sends something else, or nothing for a
 * while, is closed without effect on the others.
 */
#include "worker/group/bootstrap.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/number.h"
#include "common/sock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char magic[8] = "ddpmeet1";

enum { CARD_MAX = 4096, NAME_BYTES = 200, SAY_MS = 5000, RETRY_US = 10000 };

static const uint32_t NO_GROUP = UINT32_MAX; /* sent instead of a card's size */

struct intro {
    char magic[8];
    uint32_t rank, size, ncard;
    char name[NAME_BYTES];
};

/* ---- rank 0 ---- */

struct host {
    const struct bootstrap *m;
    struct ddp_value *cards;
    int *fds; /* by rank; -1: not connected yet */
    int missing;
};

/* 0: the connection is kept; 1: it is not; -1: this cannot become a group. */
static int welcome(struct host *h, int fd, struct ddp_err *err)
{
    struct intro in;
    char card[CARD_MAX + 1] = "";
    int64_t until = now_ms() + SAY_MS;
    until = until < h->m->deadline_ms ? until : h->m->deadline_ms;
    if (sock_read_all(fd, &in, sizeof in, until) < 0 ||
        memcmp(in.magic, magic, sizeof magic) != 0)
        return 1;
    size_t n = ntohl(in.ncard);
    int rank = (int)(ntohl(in.rank) & INT32_MAX),
        size = (int)(ntohl(in.size) & INT32_MAX);
    in.name[sizeof in.name - 1] = '\0';
    if (n > CARD_MAX || sock_read_all(fd, card, n, until) < 0)
        return 1;
    if (strncmp(in.name, h->m->name, sizeof in.name - 1) != 0)
        return 1;
    if (size != h->m->size)
        return err_set(err, "rank %d speaks of %d ranks, rank 0 of %d", rank, size,
                       h->m->size);
    if (rank <= 0 || rank >= size || h->fds[rank] >= 0)
        return err_set(err, "two ranks at tcp://%s are rank %d", h->m->place, rank);
    h->fds[rank] = fd;
    card_copy(&h->cards[rank], card, n);
    h->missing--;
    return 0;
}

static int give_all(const struct host *h, struct ddp_err *err)
{
    size_t size = 0, at = 0;
    for (int r = 0; r < h->m->size; r++)
        size += sizeof(uint32_t) + h->cards[r].size;
    char *all = xcalloc(size, 1);
    for (int r = 0; r < h->m->size; r++) {
        uint32_t n = htonl((uint32_t)h->cards[r].size);
        memcpy(all + at, &n, sizeof n);
        memcpy(all + at + sizeof n, h->cards[r].data, h->cards[r].size);
        at += sizeof n + h->cards[r].size;
    }
    int rc = 0, to = 1;
    while (to < h->m->size &&
           (rc = sock_write_all(h->fds[to], all, size, h->m->deadline_ms)) == 0)
        to++;
    bool late = rc < 0 && errno == ETIMEDOUT; /* before free() */
    free(all);
    return rc == 0 ? 0
                   : err_set(err,
                             late ? "rank %d did not read in time at tcp://%s"
                                  : "rank %d ended during the bootstrap at tcp://%s",
                             to, h->m->place);
}

/* Tell the ranks that have connected, so that they need not wait for their deadline. */
static void give_up(const struct host *h)
{
    uint32_t sign = htonl(NO_GROUP);
    for (int r = 1; r < h->m->size; r++) {
        if (h->fds[r] >= 0)
            (void)!send(h->fds[r], &sign, sizeof sign, MSG_NOSIGNAL | MSG_DONTWAIT);
    }
}

static int host_all(struct host *h, int listener, struct ddp_err *err)
{
    while (h->missing > 0) {
        if (now_ms() >= h->m->deadline_ms || /* strangers may keep connecting */
            sock_await(listener, POLLIN, h->m->deadline_ms) < 0)
            return bootstrap_late(h->m, "tcp://", h->cards, err);
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE))
            return err_errno(
                err,
                "rank 0 cannot let %d ranks in at tcp://%s, since each takes "
                "a descriptor",
                h->m->size - 1, h->m->place);
        if (fd < 0)
            continue;
        int rc = welcome(h, fd, err);
        if (rc != 0)
            close(fd);
        if (rc < 0)
            return -1;
    }
    return give_all(h, err);
}

int bootstrap_tcp_serve(const struct bootstrap *m, int listener, const char *card,
                        struct ddp_value *cards, struct ddp_err *err)
{
    struct host h = {m, cards, xcalloc((size_t)m->size, sizeof *h.fds), m->size - 1};
    for (int r = 0; r < m->size; r++)
        h.fds[r] = -1;
    card_copy(&cards[0], card, strlen(card));
    int rc = host_all(&h, listener, err);
    if (rc < 0)
        give_up(&h);
    for (int r = 0; r < m->size; r++) {
        if (h.fds[r] >= 0)
            close(h.fds[r]);
    }
    free(h.fds);
    if (rc < 0)
        ddp_values_free(cards, (size_t)m->size);
    return rc;
}

/* ---- the others ---- */

/* 0, -1, or 1: the listener belonged to an earlier group, and has closed. */
static int recv_cards(const struct bootstrap *m, int fd, struct ddp_value *cards)
{
    for (int r = 0; r < m->size; r++) {
        char card[CARD_MAX];
        uint32_t n;
        if (sock_read_all(fd, &n, sizeof n, m->deadline_ms) < 0)
            return r == 0 && now_ms() < m->deadline_ms ? 1 : -1;
        if (ntohl(n) > CARD_MAX || sock_read_all(fd, card, ntohl(n), m->deadline_ms) < 0)
            return -1;
        card_copy(&cards[r], card, ntohl(n));
    }
    return 0;
}

static int visit_once(const struct bootstrap *m, const char *addr, int port,
                      const char *card, struct ddp_value *cards, struct ddp_err *err)
{
    int fd = sock_connect(addr, port, m->deadline_ms, true, err);
    if (fd < 0)
        return err_prefix(err, "rank 0 is not at tcp://%s", m->place);
    struct intro in = {.rank = htonl((uint32_t)m->rank),
                       .size = htonl((uint32_t)m->size),
                       .ncard = htonl((uint32_t)strlen(card))};
    memcpy(in.magic, magic, sizeof in.magic);
    snprintf(in.name, sizeof in.name, "%s", m->name);
    int rc = sock_write_all(fd, &in, sizeof in, m->deadline_ms);
    if (rc == 0)
        rc = sock_write_all(fd, card, strlen(card), m->deadline_ms);
    rc = rc == 0 ? recv_cards(m, fd, cards) : 1;
    if (rc < 0)
        err_set(err,
                now_ms() >= m->deadline_ms
                    ? "not all ranks have joined at tcp://%s in time"
                    : "rank 0 at tcp://%s has given up",
                m->place);
    close(fd);
    return rc;
}

static int visit(const struct bootstrap *m, const char *addr, int port, const char *card,
                 struct ddp_value *cards, struct ddp_err *err)
{
    int rc;
    while ((rc = visit_once(m, addr, port, card, cards, err)) > 0)
        usleep(RETRY_US);
    if (rc < 0)
        ddp_values_free(cards, (size_t)m->size);
    return rc;
}

/* The rank's address is line 4 of its card. */
int bootstrap_listen(const char *card, char value[BOOTSTRAP_VALUE], struct ddp_err *err)
{
    int port;
    for (int i = 0; i < 3 && card; i++)
        card = strchr(card, '\n') ? strchr(card, '\n') + 1 : NULL;
    if (!card)
        return err_set(err, "the card of rank 0 has no address");
    int listener = sock_listen(NULL, 0, &port, err);
    if (listener >= 0)
        snprintf(value, BOOTSTRAP_VALUE, "%d@%.*s", port, (int)strcspn(card, "\n"), card);
    return listener;
}

int bootstrap_at(const struct bootstrap *m, int listener, const char *value,
                 const char *source, const char *card, struct ddp_value *cards,
                 struct ddp_err *err)
{
    const char *at = strchr(value, '@');
    if (!at)
        return err_set(err, "%s carries '%s' for rank 0's address", source, value);
    struct bootstrap tcp = *m;
    char *place = xasprintf("%s:%d", at + 1, atoi(value));
    tcp.place = place;
    int rc = listener >= 0 ? bootstrap_tcp_serve(&tcp, listener, card, cards, err)
                           : visit(&tcp, at + 1, atoi(value), card, cards, err);
    free(place);
    return rc;
}

int bootstrap_parse_address(const char *place, char host[256], int *port,
                            struct ddp_err *err)
{
    const char *colon = strrchr(place, ':'), *end = colon;
    if (colon && place[0] == '[' && end > place && end[-1] == ']') {
        place++;
        end--;
    }
    if (!colon || end == place || end - place > 255 ||
        !number_whole(colon + 1, 1, 65535, port))
        return err_set(err, "'%s' is not host:port", place);
    snprintf(host, 256, "%.*s", (int)(end - place), place);
    return 0;
}

int bootstrap_tcp(const struct bootstrap *m, const char *card, struct ddp_value *cards,
                  struct ddp_err *err)
{
    char addr[256];
    int port = 0;
    if (bootstrap_parse_address(m->place, addr, &port, err) < 0)
        return -1;
    if (m->rank > 0)
        return visit(m, addr, port, card, cards, err);
    int listener = sock_listen(NULL, port, NULL, err);
    if (listener < 0)
        return err_prefix(err,
                          "rank 0 cannot listen at tcp://%s (for a store that runs "
                          "already: env://)",
                          m->place);
    int rc = bootstrap_tcp_serve(m, listener, card, cards, err);
    close(listener);
    return rc;
}
