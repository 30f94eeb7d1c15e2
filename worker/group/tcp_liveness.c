/* worker/group/tcp_liveness.c - are the ranks of other hosts alive?
 *
 * The kernel closes the streams of a process that has ended for whatever reason; a host
 * that is down is found by keepalive. Either needs a stream, so one is opened where
 * there is none.
 */
#include "worker/group/tcp_impl.h"

#include "common/err.h"
#include "common/mem.h"

#include <sys/resource.h>

enum { OPENED = 64 }; /* streams at one look */

/* On an open stream the end of file arrives behind the last data, so only a missing one
 * needs a check. */
static bool is_missing(const struct tcp *n, const struct interest *w)
{
    return w->send || n->streams[w->rank].in[w->ch] < 0;
}

bool tcp_still_needs(const struct tcp *n, int rank)
{
    for (size_t i = 0; i < n->ninterests; i++) {
        if (n->interests[i].rank == rank && is_missing(n, &n->interests[i]))
            return true;
    }
    return n->noted && n->noted[rank].watched;
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
    bool begun = tcp_is_connecting(n, rank, TCP_COLL);
    if (!tcp_any_stream(s) && (begun || (l->opened < OPENED && may_open(n)))) {
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

static int look_at_watched(struct tcp *n, struct look *look, int rank,
                           struct ddp_err *err)
{
    char who[128];
    if (n->noted[rank].left == 0)
        return look_at(n, look, rank, err);
    return n->noted[rank].left > n->watched_in
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
    for (int rank = 0; n->noted && rank < n->layout->size; rank++) {
        if (n->noted[rank].watched && look_at_watched(n, &look, rank, err) < 0)
            return rank;
    }
    ask_kernel(&look);
    if (look.gone >= 0)
        tcp_gone(n, look.gone, "connection closed", err);
    return look.gone;
}

/* ---- watched ranks ---- */

struct noted *tcp_noted(struct tcp *n, int rank)
{
    if (!n->noted)
        n->noted = xcalloc((size_t)n->layout->size, sizeof *n->noted);
    return &n->noted[rank];
}

void tcp_watch_none(struct tcp *n, uint64_t number)
{
    for (int rank = 0; n->noted && rank < n->layout->size; rank++)
        n->noted[rank].watched = false;
    n->watched_in = number;
}

void tcp_watch(struct tcp *n, int rank)
{
    struct noted *of = tcp_noted(n, rank);
    of->watched = of->left <= n->watched_in;
}
