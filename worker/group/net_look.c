/* worker/group/net_look.c - whether other hosts' ranks still live
 *
 * A process that has ended, however it ended, has its streams closed by its kernel; one
 * whose host is down is found by keepalive. So it takes a stream to see it, and where
 * there is none one is opened.
 */
#include "worker/group/net_impl.h"

#include "common/err.h"
#include "common/mem.h"

#include <stdlib.h>
#include <sys/resource.h>

enum { OPENED = 64 }; /* streams at one look */

/* A stream that is there tells of its end itself, behind the last that came by it. */
static bool is_missing(const struct net *n, const struct interest *w)
{
    return w->send || n->streams[w->rank].in[w->ch] < 0;
}

static bool is_watched(const struct net *n, int rank)
{
    for (size_t i = 0; i < n->nwatched; i++) {
        if (n->watched[i] == rank)
            return true;
    }
    return false;
}

bool net_misses(const struct net *n, int rank)
{
    for (size_t i = 0; i < n->ninterests; i++) {
        if (n->interests[i].rank == rank && is_missing(n, &n->interests[i]))
            return true;
    }
    return is_watched(n, rank);
}

/* The other half is the user's. */
static bool may_open(const struct net *n)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && n->nlooking < limit.rlim_cur / 2;
}

/* One look at all: the kernel is asked about many streams at once. */
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
static int look_at(struct net *n, struct look *l, int rank, struct ddp_err *err)
{
    const struct streams *s = &n->streams[rank];
    bool in = s->in[NET_COLL] >= 0 || s->in[NET_MESSAGE] >= 0;
    bool out = s->out[NET_COLL] >= 0 || s->out[NET_MESSAGE] >= 0;
    bool begun = net_is_connecting(n, rank, NET_COLL);
    if (!in && !out && (begun || (l->opened < OPENED && may_open(n)))) {
        l->opened += !begun;
        n->nlooking += !begun;
        if (net_connect(n, rank, NET_COLL, 0, err) < 0)
            return -1;
    }
    for (int ch = 0; ch < NET_NCHANNELS; ch++) {
        look_at_stream(l, rank, s->in[ch]);
        look_at_stream(l, rank, s->out[ch]);
    }
    return 0;
}

static const struct leaver *find_leaver(const struct net *n, int rank)
{
    const struct leaver *l = n->leavers;
    while (l && l->rank != rank)
        l = l->next;
    return l;
}

static int look_at_watched(struct net *n, struct look *look, int rank,
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

int net_look(struct net *n, struct ddp_err *err)
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
        net_gone(n, look.gone, "connection closed", err);
    return look.gone;
}

/* ---- who is watched ---- */

void net_watch_none(struct net *n, uint64_t number)
{
    n->nwatched = 0;
    n->watched_in = number;
}

void net_watch(struct net *n, int rank)
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

void net_keep_leaver(struct net *n, int rank, uint64_t entered)
{
    struct leaver *l = xcalloc(1, sizeof *l);
    *l = (struct leaver){n->leavers, rank, entered};
    n->leavers = l;
}

void net_forget_watched(struct net *n)
{
    while (n->leavers) {
        struct leaver *l = n->leavers;
        n->leavers = l->next;
        free(l);
    }
    free(n->watched);
}
