/* worker/group/net_tell.c - telling why a group broke, asking who has come how far, and
 * saying what one calls, or that one leaves
 *
 * All go over connections of their own, since the streams may be full or not yet open,
 * and to all at once: none may hold up the others. Whoever waits in a call of the library
 * hears them; a rank that does not answer is not in one.
 */
#include "worker/group/net_impl.h"

#include "common/duration.h"
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    TELL_MS = 500,   /* for all who must be told that the group broke */
    ASK_MS = 500,    /* for all to answer */
    TELL_ALL = 1024, /* in larger groups, those that we have a stream with are told */
    SAYINGS = 64,    /* ranks that are told at once what I call */
    SAY_MS = 1       /* for their kernels to take the connections */
};

bool net_answers(const struct net *n, int rank)
{
    const struct member *members = n->layout->members;
    if (members[rank].host == members[n->layout->rank].host)
        return false;
    struct pollfd p = {.fd = net_start_connect(&members[rank]), .events = POLLOUT};
    int why = 0;
    bool ended = p.fd >= 0 && poll(&p, 1, ASK_MS) > 0;
    bool answers = ended && getsockopt(p.fd, SOL_SOCKET, SO_ERROR, &why,
                                       &(socklen_t){sizeof why}) == 0;
    if (p.fd >= 0)
        close(p.fd);
    return answers && why == 0;
}

/* ---- telling ---- */

static bool must_be_told(const struct net *n, int rank, int culprit,
                         enum net_audience audience)
{
    const struct layout *l = n->layout;
    if (rank == l->rank || rank == culprit ||
        l->members[rank].host == l->members[l->rank].host)
        return false;
    const struct streams *s = &n->streams[rank];
    return (audience == NET_TO_ALL && l->size <= TELL_ALL) || s->in[NET_COLL] >= 0 ||
           s->out[NET_COLL] >= 0 || s->in[NET_MESSAGE] >= 0 || s->out[NET_MESSAGE] >= 0;
}

/* Send it, with a hello before it, to all that p[] has a connection begun to, by rank;
 * none holds up the others. One that does not take it is gone itself. */
static void tell(struct net *n, struct pollfd *p, int what, const void *data,
                 size_t bytes)
{
    int size = n->layout->size, waiting = 0;
    for (int r = 0; r < size; r++)
        waiting += p[r].fd >= 0;
    int64_t until = now_ms() + TELL_MS, left = TELL_MS;
    while (waiting > 0 && left > 0 && poll(p, (nfds_t)size, (int)left) > 0) {
        for (int r = 0; r < size; r++) {
            if (p[r].fd < 0 || p[r].revents == 0)
                continue;
            struct hello h = net_hello(n, r, what);
            struct iovec io[] = {{&h, sizeof h}, {(void *)(uintptr_t)data, bytes}};
            struct msghdr msg = {.msg_iov = io, .msg_iovlen = 2};
            (void)!sendmsg(p[r].fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT);
            close(p[r].fd);
            p[r].fd = -1;
            waiting--;
        }
        left = until - now_ms();
    }
    for (int r = 0; r < size; r++) {
        if (p[r].fd >= 0)
            close(p[r].fd);
    }
}

void net_tell(struct net *n, int culprit, const char *why, enum net_audience audience)
{
    struct news news = {.culprit = culprit};
    snprintf(news.why, sizeof news.why, "%s", why);
    int size = n->layout->size;
    struct pollfd *p = xcalloc((size_t)size, sizeof *p);
    for (int r = 0; r < size; r++) {
        bool must = must_be_told(n, r, culprit, audience);
        p[r] = (struct pollfd){.fd = must ? net_start_connect(&n->layout->members[r]) : -1,
                               .events = POLLOUT};
    }
    tell(n, p, HELLO_TELL, &news, sizeof news);
    free(p);
}

void net_take_leave(struct net *n, const int *ranks, int nranks)
{
    int size = n->layout->size;
    struct pollfd *p = xcalloc((size_t)size, sizeof *p);
    for (int r = 0; r < size; r++)
        p[r] = (struct pollfd){.fd = -1, .events = POLLOUT};
    for (int i = 0; i < nranks; i++)
        p[ranks[i]].fd = net_start_connect(&n->layout->members[ranks[i]]);
    tell(n, p, HELLO_LEAVE, n->entered, sizeof *n->entered);
    free(p);
}

/* ---- asking ---- */

struct question {
    const struct net *n;
    struct pollfd *p; /* by rank; fd -1: not asked, answered, or refused */
    bool *came;       /* by rank */
    uint64_t number;
};

/* The next step with one rank: send the question, or take the answer. */
static void hear_answer(struct question *q, int rank)
{
    struct pollfd *p = &q->p[rank];
    if (p->events == POLLOUT) {
        struct hello h = net_hello(q->n, rank, HELLO_ASK);
        p->events = POLLIN;
        if (send(p->fd, &h, sizeof h, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof h)
            return;
    } else {
        uint64_t entered = 0;
        q->came[rank] = recv(p->fd, &entered, sizeof entered, MSG_DONTWAIT) ==
                            (ssize_t)sizeof entered &&
                        entered >= q->number;
    }
    close(p->fd);
    p->fd = -1;
}

int net_ask(struct net *n, uint64_t number, int *late, int max)
{
    int size = n->layout->size, waiting = 0, found = 0, culprit;
    struct ddp_err unwanted;
    if (size > TELL_ALL)
        return 0;
    struct question q = {.n = n, .number = number};
    q.p = xcalloc((size_t)size + 1, sizeof *q.p);
    q.came = xcalloc((size_t)size, sizeof *q.came);
    for (int r = 0; r < size; r++) {
        bool other =
            n->layout->members[r].host != n->layout->members[n->layout->rank].host;
        q.came[r] = !other;
        q.p[r] = (struct pollfd){.fd = other ? net_start_connect(&n->layout->members[r]) : -1,
                                 .events = POLLOUT};
        waiting += q.p[r].fd >= 0;
    }
    int64_t until = now_ms() + ASK_MS;
    while (waiting > 0 && now_ms() < until && !net_told(n, &culprit, &unwanted)) {
        /* the others may be asking, too; listen_to() needs a turn now and then */
        q.p[size] = (struct pollfd){.fd = n->listener, .events = POLLIN};
        if (poll(q.p, (nfds_t)size + 1, 20) <= 0)
            continue;
        for (int r = 0; r < size; r++) {
            if (q.p[r].fd >= 0 && q.p[r].revents)
                hear_answer(&q, r);
        }
        waiting = 0;
        for (int r = 0; r < size; r++)
            waiting += q.p[r].fd >= 0;
    }
    for (int r = 0; r < size; r++) {
        if (q.p[r].fd >= 0)
            close(q.p[r].fd);
        if (!q.came[r] && found < max)
            late[found++] = r;
    }
    free(q.p);
    free(q.came);
    return found;
}

/* ---- what is called ---- */

void net_keep_calls(struct net *n, int from, const struct said_calls *calls)
{
    struct heard *h = n->heard;
    while (h && h->from != from)
        h = h->next;
    if (!h) {
        h = xcalloc(1, sizeof *h);
        h->from = from;
        h->next = n->heard;
        n->heard = h;
    }
    h->calls = *calls;
}

bool net_hear_calls(struct net *n, int *rank, struct said_calls *theirs)
{
    struct heard **at = &n->heard, *h;
    while ((h = *at) && h->calls.call[0].number > *n->entered)
        at = &h->next;
    if (!h)
        return false;
    *rank = h->from;
    *theirs = h->calls;
    *at = h->next;
    free(h);
    return true;
}

static void start_saying(struct net *n, uint64_t number)
{
    const struct member *members = n->layout->members;
    if (!n->said) {
        n->said = xcalloc((size_t)n->layout->size, sizeof *n->said);
        n->saying = xcalloc(SAYINGS, sizeof *n->saying);
    }
    for (size_t i = 0; i < n->ninterests + n->nwatched && n->nsaying < SAYINGS; i++) {
        int rank =
            i < n->ninterests ? n->interests[i].rank : n->watched[i - n->ninterests];
        if (n->said[rank] == number)
            continue;
        n->said[rank] = number;
        int fd = net_start_connect(&members[rank]);
        if (fd >= 0)
            n->saying[n->nsaying++] = (struct saying){fd, rank};
    }
}

void net_say_calls(struct net *n, const struct said_calls *mine)
{
    struct pollfd p[SAYINGS];
    size_t left = 0;
    start_saying(n, mine->call[0].number);
    for (size_t i = 0; i < n->nsaying; i++)
        p[i] = (struct pollfd){.fd = n->saying[i].fd, .events = POLLOUT};
    poll(p, n->nsaying, n->nsaying ? SAY_MS : 0);
    for (size_t i = 0; i < n->nsaying; i++) {
        struct {
            struct hello hello;
            struct said_calls calls;
        } said = {net_hello(n, n->saying[i].rank, HELLO_CALL), *mine};
        if (p[i].revents == 0) {
            n->saying[left++] = n->saying[i];
            continue;
        }
        /* one that does not take it will be missed for other reasons */
        (void)!send(p[i].fd, &said, sizeof said, MSG_NOSIGNAL | MSG_DONTWAIT);
        close(p[i].fd);
    }
    n->nsaying = left;
}

void net_forget_calls(struct net *n)
{
    while (n->heard) {
        struct heard *h = n->heard;
        n->heard = h->next;
        free(h);
    }
    for (size_t i = 0; i < n->nsaying; i++)
        close(n->saying[i].fd);
    free(n->saying);
    free(n->said);
}
