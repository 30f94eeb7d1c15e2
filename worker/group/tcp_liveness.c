/* worker/group/tcp_liveness.c - are the ranks of other hosts alive?
 *
 * The kernel closes the streams of a process that has ended for whatever reason; a host
 * that is down is found by keepalive. Either needs a stream, so one is opened where
 * there is none.
 */
#include "worker/group/tcp_impl.h"

#include "common/err.h"
#include "common/mem.h"

#include <stdlib.h>
#include <sys/resource.h>

enum { OPENED = 64 }; /* streams at one look */

/* On an open stream the end of file arrives behind the last data, so only a missing one
 * needs a check. */
static bool is_missing(const struct tcp *n, const struct interest *w)
{
    return w->send || n->streams[w->rank].in[w->ch] < 0;
}

static bool is_watched(const struct tcp *n, int rank)
{
    for (size_t i = 0; i < n->nwatched; i++) {
        if (n->watched[i] == rank)
            return true;
    }
    return false;
}

bool tcp_still_needs(const struct tcp *n, int rank)
{
    for (size_t i = 0; i < n->ninterests; i++) {
        if (n->interests[i].rank == rank && is_missing(n, &n->interests[i]))
            return true;
    }
    return is_watched(n, rank);
}

/* Half of the descriptors are left to the user. */
static bool may_open(const struct tcp *n)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && n->nlooking < limit.rlim_cur / 2;
}

/* One pass over all ranks, which polls many streams per system call. */
struct look {
    int opened, gone; /* gone: the rank; -1: none so far */
    nfds_t n;
    struct pollfd p[256];
    int rank[256]; /* whose they are */
};

static void ask_kernel(struct look *l)
{
    bool any = l->n > 0 && poll(l->p, l->n, 0) > 0;
    for (nfds_t i = 0; any && i < l->n && l->gone < 0; i++) {
        if (l->p[i].revents != 0)
            l->gone = l->rank[i];
    }
    l->n = 0;
}

static void look_at_stream(struct look *l, int rank, int fd)
{
    if (fd < 0)
        return;
    if (l->n == ARRAY_LEN(l->p))
        ask_kernel(l);
    l->p[l->n] = (struct pollfd){.fd = fd, .events = POLLRDHUP};
    l->rank[l->n++] = rank;
}

/* 0, or -1 when the rank cannot be reached. */
static int look_at(struct tcp *n, struct look *l, int rank, struct ddp_err *err)
{
    const struct streams *s = &n->streams[rank];
    bool in = s->in[TCP_COLL] >= 0 || s->in[TCP_MESSAGE] >= 0;
    bool out = s->out[TCP_COLL] >= 0 || s->out[TCP_MESSAGE] >= 0;
    bool begun = tcp_is_connecting(n, rank, TCP_COLL);
    if (!in && !out && (begun || (l->opened < OPENED && may_open(n)))) {
        l->opened += !begun;
        n->nlooking += !begun;
        if (tcp_connect(n, rank, TCP_COLL, 0, err) < 0)
            return -1;
    }
    for (int ch = 0; ch < TCP_NCHANNELS; ch++) {
        look_at_stream(l, rank, s->in[ch]);
        look_at_stream(l, rank, s->out[ch]);
    }
    return 0;
}

static const struct leaver *find_leaver(const struct tcp *n, int rank)
{
    const struct leaver *l = n->leavers;
    while (l && l->rank != rank)
        l = l->next;
    return l;
}

static int look_at_watched(struct tcp *n, struct look *look, int rank,
                           struct ddp_err *err)
{
    char who[128];
    const struct leaver *l = find_leaver(n, rank);
    if (!l)
        return look_at(n, look, rank, err);
    return l->entered >= n->watched_in
               ? 0
               : err_set(err, "%s has left the group",
                         layout_who(n->layout, rank, who, sizeof who));
}

int tcp_look(struct tcp *n, struct ddp_err *err)
{
    struct look look = {.gone = -1};
    for (size_t i = 0; i < n->ninterests; i++) {
        int rank = n->interests[i].rank;
        if (is_missing(n, &n->interests[i]) && look_at(n, &look, rank, err) < 0)
            return rank;
    }
    for (size_t i = 0; i < n->nwatched; i++) {
        int rank = n->watched[i];
        if (look_at_watched(n, &look, rank, err) < 0)
            return rank;
    }
    ask_kernel(&look);
    if (look.gone >= 0)
        tcp_gone(n, look.gone, "connection closed", err);
    return look.gone;
}

/* ---- watched ranks ---- */

void tcp_watch_none(struct tcp *n, uint64_t number)
{
    n->nwatched = 0;
    n->watched_in = number;
}

void tcp_watch(struct tcp *n, int rank)
{
    const struct leaver *l = find_leaver(n, rank);
    if (is_watched(n, rank) || (l && l->entered >= n->watched_in))
        return;
    if (n->nwatched == n->watched_room) {
        n->watched_room = n->watched_room ? 2 * n->watched_room : 8;
        n->watched = xrealloc(n->watched, n->watched_room, sizeof *n->watched);
    }
    n->watched[n->nwatched++] = rank;
}

void tcp_keep_leaver(struct tcp *n, int rank, uint64_t entered)
{
    struct leaver *l = xcalloc(1, sizeof *l);
    *l = (struct leaver){n->leavers, rank, entered};
    n->leavers = l;
}

void tcp_forget_watched(struct tcp *n)
{
    while (n->leavers) {
        struct leaver *l = n->leavers;
        n->leavers = l->next;
        free(l);
    }
    free(n->watched);
}
