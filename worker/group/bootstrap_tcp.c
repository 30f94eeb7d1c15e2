/* worker/group/bootstrap_tcp.c - tcp://host:port: rank 0 collects all cards
 *
 * Each other rank connects and introduces itself. Rank 0 checks rank and size, and when
 * all have connected sends every rank all cards; or, when it has given up, '-' and why.
 *
 * A connection that sends something else, or nothing for a while, is closed without
 * effect on the others, and so is the oldest of too many: a rank tries again.
 */
#include "worker/group/bootstrap.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/idset.h"
#include "common/mem.h"
#include "common/sanitize.h"
#include "common/scoped.h"
#include "common/sock.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

static const char magic[8] = "ddpmeet3";

enum {
    NAME_BYTES = 200,
    CALLERS_MAX = 128, /* connections that have not introduced themselves */
    SAY_MS = 1000,     /* a connection's time to introduce itself; a rank tries again */
    RETRY_MS = 10,
    RETRY_MOST_MS = 500,
    LOOK_MS = 100,
    WHY_MS = 1000 /* extra wait for rank 0's error: its deadline may be later */
};

struct intro {
    char magic[8];
    int32_t rank, size;
    char name[NAME_BYTES];
    struct card card;
};

/* ---- rank 0 ---- */

/* Names the ranks whose cards are missing at the deadline. */
static int late(const struct bootstrap *m, const int *fds, struct ddp_err *err)
{
    SCOPED(idset_finish) struct idset missing = {0};
    for (int r = 1; r < m->size; r++) {
        if (fds[r] < 0)
            idset_add(&missing, r, r);
    }
    OWNED char *text = idset_text(&missing);
    return err_set(err, "%ld of %d ranks have not come to tcp://%s in time: %s",
                   idset_count(&missing), m->size, m->place, text);
}

struct host {
    struct bootstrap *m;
    int *fds; /* by rank; -1: not connected yet */
    int missing, ncallers;
    /* the listener, and callers, the oldest first; their time to introduce themselves */
    struct pollfd polled[1 + CALLERS_MAX];
    int64_t until_ms[1 + CALLERS_MAX];
};

/* The introduction of a caller has come, or its end. 0: the connection is kept; 1: it is
 * not; -1: this cannot become a group. */
static int welcome(struct host *h, int fd, struct ddp_err *err)
{
    struct intro in;
    if (sock_read_all(fd, &in, sizeof in, now_ms()) < 0 ||
        memcmp(in.magic, magic, sizeof magic) != 0 ||
        strncmp(in.name, h->m->name, sizeof in.name - 1) != 0 || in.rank <= 0 ||
        in.rank >= in.size)
        return 1;
    if (in.size != h->m->size)
        return err_set(err, "rank %d speaks of %d ranks, rank 0 of %d", in.rank, in.size,
                       h->m->size);
    if (h->fds[in.rank] >= 0)
        return err_set(err,
                       "two ranks at tcp://%s are rank %d, on %.60s and on %.60s: given "
                       "twice, or of two jobs",
                       h->m->place, in.rank, h->m->cards[in.rank].host_name,
                       in.card.host_name);
    h->fds[in.rank] = fd;
    h->m->cards[in.rank] = in.card;
    h->missing--;
    return 0;
}

static int give_all(const struct host *h, struct ddp_err *err)
{
    size_t bytes = (size_t)h->m->size * sizeof *h->m->cards;
    for (int r = 1; r < h->m->size; r++) {
        if (sock_write_all(h->fds[r], h->m->cards, bytes, h->m->deadline_ms) < 0)
            return err_set(err,
                           errno == ETIMEDOUT
                               ? "rank %d did not read in time at tcp://%s"
                               : "rank %d ended during the bootstrap at tcp://%s",
                           r, h->m->place);
    }
    return 0;
}

/* Tell a rank that has connected, so that it need not wait for its deadline. */
static void give_up(int fd, const char *why)
{
    char text[sizeof(struct ddp_err)];
    int n = snprintf(text, sizeof text, "-%.*s", (int)sizeof text - 2, why);
    if (fd >= 0)
        (void)!send(fd, text, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

/* Wait for a connection or an introduction, until the deadline passes or a rank that has
 * connected ends. */
static int await_rank(struct host *h, struct ddp_err *err)
{
    struct bootstrap *m = h->m;
    char byte;
    int64_t now = now_ms(), left_ms = m->deadline_ms - now;
    if (left_ms <= 0) /* strangers may keep connecting */
        return late(m, h->fds, err);
    int n = poll(h->polled, (nfds_t)h->ncallers + 1,
                 (int)(left_ms < LOOK_MS ? left_ms : LOOK_MS));
    limit_extend(&m->deadline_ms, now, LOOK_MS);
    for (int i = 0; n < 0 && i <= h->ncallers; i++)
        h->polled[i].revents = 0; /* a signal has come */
    for (int r = 1; n == 0 && r < m->size; r++) {
        if (h->fds[r] >= 0 && recv(h->fds[r], &byte, 1, MSG_DONTWAIT) == 0)
            return err_set(err, "rank %d on %.60s has gone or given up at tcp://%s", r,
                           h->m->cards[r].host_name, m->place);
    }
    return 0;
}

/* Takes it out of the list. */
static int caller_take(struct host *h, int i)
{
    int fd = h->polled[i].fd;
    for (; i < h->ncallers; i++) {
        h->polled[i] = h->polled[i + 1];
        h->until_ms[i] = h->until_ms[i + 1];
    }
    h->ncallers--;
    return fd;
}

static int accept_caller(struct host *h, struct ddp_err *err)
{
    if (h->ncallers == CALLERS_MAX)
        close(caller_take(h, 1));
    int fd = accept4(h->polled[0].fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    bool full = fd < 0 && (errno == EMFILE || errno == ENFILE);
    if (full && h->ncallers == 0)
        return err_errno(err,
                         "rank 0 cannot let %d ranks in at tcp://%s, since each takes "
                         "a descriptor",
                         h->m->size - 1, h->m->place);
    if (full)
        close(caller_take(h, 1));
    if (fd < 0)
        return 0;
    /* readable when all of it has come */
    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &(int){sizeof(struct intro)}, sizeof(int));
    h->polled[++h->ncallers] = (struct pollfd){.fd = fd, .events = POLLIN};
    h->until_ms[h->ncallers] = now_ms() + SAY_MS;
    return 0;
}

static int welcome_callers(struct host *h, struct ddp_err *err)
{
    for (int i = 1; i <= h->ncallers;) {
        bool speaks = h->polled[i].revents;
        if (!speaks && now_ms() < h->until_ms[i]) {
            i++;
            continue;
        }
        int fd = caller_take(h, i), rc = speaks ? welcome(h, fd, err) : 1;
        if (rc < 0)
            give_up(fd, err->text);
        if (rc != 0)
            close(fd);
        if (rc < 0)
            return -1;
    }
    return 0;
}

static int host_all(struct host *h, struct ddp_err *err)
{
    while (h->missing > 0) {
        TRY(await_rank(h, err));
        bool connects = h->polled[0].revents;
        TRY(welcome_callers(h, err));
        if (connects)
            TRY(accept_caller(h, err));
    }
    return give_all(h, err);
}

int bootstrap_tcp_serve(struct bootstrap *m, int listener, struct ddp_err *err)
{
    OWNED int *fds = xcalloc((size_t)m->size, sizeof *fds);
    struct host h = {.m = m, .fds = fds, .missing = m->size - 1};
    h.polled[0] = (struct pollfd){.fd = listener, .events = POLLIN};
    for (int r = 0; r < m->size; r++)
        fds[r] = -1;
    m->cards[0] = *m->card;
    int rc = host_all(&h, err);
    while (h.ncallers > 0)
        close(caller_take(&h, 1));
    if (rc < 0)
        sanitize_all(err->text); /* it may have a stranger's host name */
    for (int r = 0; r < m->size; r++) {
        if (rc < 0)
            give_up(fds[r], err->text);
        close_fd(&fds[r]);
    }
    return rc;
}

/* ---- the others ---- */

/* 0, -1, or 1: the listener belonged to an earlier group, and has closed. */
static int visit_once(struct bootstrap *m, struct ddp_err *err)
{
    SCOPED(close_fd)
    int fd = sock_connect_extend(m->addr, m->port, &m->deadline_ms, !m->listens, err);
    if (fd < 0)
        return err_prefix(err, "rank 0 is %s at tcp://%s",
                          m->listens && errno == ECONNREFUSED ? "no longer" : "not",
                          m->place);
    struct intro in = {.rank = m->rank, .size = m->size, .card = *m->card};
    memcpy(in.magic, magic, sizeof in.magic);
    snprintf(in.name, sizeof in.name, "%s", m->name);
    size_t bytes = (size_t)m->size * sizeof *m->cards;
    char *text = memset(m->cards, 0, bytes); /* or why rank 0 has given up */
    int64_t until_ms = m->deadline_ms + WHY_MS;
    bool come = sock_write_all(fd, &in, sizeof in, m->deadline_ms) == 0 &&
                sock_await_extend(fd, POLLIN, &until_ms) == 0 &&
                sock_read_all(fd, m->cards, bytes, until_ms) == 0;
    m->deadline_ms = until_ms - WHY_MS;
    if (come)
        return 0;
    if (text[0] == '-') {
        text[bytes - 1] = '\0';
        return err_set(err, "%s", sanitize_all(text + 1));
    }
    return now_ms() < m->deadline_ms
               ? 1
               : err_set(err,
                         "not all ranks have joined at tcp://%s in time, and rank 0 "
                         "does not say which",
                         m->place);
}

static int visit(struct bootstrap *m, struct ddp_err *err)
{
    int rc, pause_ms = RETRY_MS;
    while ((rc = visit_once(m, err)) > 0) {
        if (now_ms() + pause_ms >= m->deadline_ms)
            return err_set(err,
                           "what listens at tcp://%s is not rank 0 of this group: it "
                           "closes each connection",
                           m->place);
        bootstrap_pause(m, &pause_ms, RETRY_MOST_MS);
    }
    return rc;
}

static int open_listener(const struct card *card, char value[BOOTSTRAP_VALUE],
                         struct ddp_err *err)
{
    int port, listener = sock_listen(NULL, 0, &port, err);
    uint64_t word;
    while (getrandom(&word, sizeof word, 0) != sizeof word)
        ; /* only interrupted by signals */
    if (listener >= 0)
        snprintf(value, BOOTSTRAP_VALUE, "%d@%s@%016llx", port, card->addr,
                 (unsigned long long)word);
    return listener;
}

int bootstrap_at(const struct bootstrap *m, const char *addr, int port, const char *word,
                 int listener, struct ddp_err *err)
{
    struct bootstrap tcp = *m;
    OWNED char *name = xasprintf("%s %s", word, m->name);
    tcp.port = port;
    tcp.name = name;
    tcp.place = tcp.made;
    snprintf(tcp.addr, sizeof tcp.addr, "%s", addr);
    snprintf(tcp.made, sizeof tcp.made, "%s:%d", addr, port);
    return listener >= 0 ? bootstrap_tcp_serve(&tcp, listener, err)
                         : bootstrap_tcp(&tcp, err);
}

int bootstrap_by_value(struct bootstrap *m, bootstrap_share_fn share, const char *source,
                       struct ddp_err *err)
{
    char value[BOOTSTRAP_VALUE] = "";
    SCOPED(close_fd)
    int listener = m->rank == 0 ? open_listener(m->card, value, err) : -1;
    if (m->rank == 0 && listener < 0)
        return -1;
    TRY(share(m, value, err));
    m->listens = true;
    int port;
    char addr[sizeof m->addr], word[32];
    if (sscanf(value, "%d@%255[^@]@%31s", &port, addr, word) != 3)
        return err_set(err, "%s carries '%s' for rank 0's address", source, value);
    return bootstrap_at(m, addr, port, word, listener, err);
}

int bootstrap_tcp(struct bootstrap *m, struct ddp_err *err)
{
    if (m->rank > 0)
        return visit(m, err);
    SCOPED(close_fd) int listener = sock_listen(NULL, m->port, NULL, err);
    if (listener < 0)
        return err_prefix(err,
                          "rank 0 cannot listen at tcp://%s (to use a store that runs "
                          "there: DDP_MEETING=env://)",
                          m->place);
    return bootstrap_tcp_serve(m, listener, err);
}
