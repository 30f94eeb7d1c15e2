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

/* Its streams go to n->polled, from *np on; one is opened if there is none, which
 * *opened counts. 0, or -1 when the rank cannot be reached. */
static int look_at(struct tcp *n, int rank, size_t *np, int *opened, struct ddp_err *err)
{
    const struct streams *s = &n->streams[rank];
    bool begun = tcp_is_connecting(n, rank, TCP_COLL);
    if (!tcp_any_stream(s) && (begun || (*opened < OPENED && may_open(n)))) {
        *opened += !begun;
        n->nlooking += !begun;
        TRY(tcp_connect(n, rank, TCP_COLL, 0, err));
    }
    for (int ch = 0; ch < TCP_NCHANNELS; ch++) {
        tcp_add_polled(n, np, s->in[ch], POLLRDHUP);
        tcp_add_polled(n, np, s->out[ch], POLLRDHUP);
    }
    return 0;
}

static int rank_of_stream(const struct tcp *n, int fd)
{
    for (int r = 0; r < n->layout->size; r++) {
        for (int ch = 0; ch < TCP_NCHANNELS; ch++) {
            if (n->streams[r].in[ch] == fd || n->streams[r].out[ch] == fd)
                return r;
        }
    }
    return -1;
}

/* One that has left has left nothing undone, or is to blame. */
static int check_left(const struct tcp *n, int rank, struct ddp_err *err)
{
    return n->noted[rank].left > n->watched_in
               ? 0
               : layout_blame(n->layout, rank, "has left the group", err);
}

int tcp_look(struct tcp *n, struct ddp_err *err)
{
    size_t np = 0;
    int opened = 0;
    for (size_t i = 0; i < n->ninterests; i++) {
        int rank = n->interests[i].rank;
        if (is_missing(n, &n->interests[i]) && look_at(n, rank, &np, &opened, err) < 0)
            return rank;
    }
    for (int rank = 0; n->noted && rank < n->layout->size; rank++) {
        if (n->noted[rank].watched &&
            (n->noted[rank].left > 0 ? check_left(n, rank, err)
                                     : look_at(n, rank, &np, &opened, err)) < 0)
            return rank;
    }
    bool any = np > 0 && poll(n->polled, np, 0) > 0;
    for (size_t i = 0; any && i < np; i++) {
        if (n->polled[i].revents == 0)
            continue;
        int gone = rank_of_stream(n, n->polled[i].fd);
        tcp_gone(n, gone, "connection closed", err);
        return gone;
    }
    return -1;
}

/* ---- watched ranks ---- */

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
