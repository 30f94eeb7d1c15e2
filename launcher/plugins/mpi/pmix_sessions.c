/* launcher/plugins/mpi/pmix_sessions.c - see pmix_sessions.h */
#include "launcher/plugins/mpi/pmix_sessions.h"

#include "common/ancestry.h"
#include "common/duration.h"
#include "common/mem.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

/* A connection of an MPI program, queued or active. */
struct client {
    int fd;
    ino_t socket; /* its inode: detects that `fd` has been closed and reused */
    pid_t pid;
    bool ranked; /* its rank is known */
    unsigned rank;
    unsigned session; /* session number, from 1; 0: unused */
    int64_t since;    /* ms, monotonic: when it was queued */
    bool reported;    /* returned by sessions_late() */
    struct client *prev, *next;
};

/* The number of programs that a rank has run. */
struct rank_count {
    unsigned rank, n;
    struct rank_count *next;
};

static struct client active[FD_SETSIZE]; /* by `fd`: libpmix cannot have more */
static struct client *queued;            /* owned, in order of arrival */
static struct rank_count *counts;        /* owned; never freed */

/* --- identification ----------------------------------------------------------------- */

/* The rank of a process, from PMIX_RANK in its initial environment (contract.c). This
 * only orders the rank's own programs; admission does not depend on it. The parents
 * cannot tell: a forked rank's was the preload helper, and a daemon's is the agent. */
static bool rank_of(pid_t pid, unsigned *rank)
{
    char path[48];
    OWNED char *text = NULL;
    size_t size = 0;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    SCOPED(close_file) FILE *f = fopen(path, "re");
    while (f && !found && getdelim(&text, &size, '\0', f) > 0)
        found = sscanf(text, "PMIX_RANK=%u", rank) == 1;
    return found;
}

static bool is_open(const struct client *v)
{
    struct stat st;
    return v->session > 0 && fstat(v->fd, &st) == 0 && st.st_ino == v->socket;
}

/* Whether the other end has been closed; ours may still be open. */
static bool hung_up(const struct client *v)
{
    return poll(&(struct pollfd){.fd = v->fd, .events = POLLRDHUP}, 1, 0) > 0;
}

static struct rank_count *count_of(unsigned rank)
{
    struct rank_count *n;
    LL_SEARCH_SCALAR(counts, n, rank, rank);
    if (!n) {
        n = xcalloc(1, sizeof *n);
        n->rank = rank;
        LL_PREPEND(counts, n);
    }
    return n;
}

static unsigned session_of(const struct client *v)
{
    if (!v->ranked)
        return 1;
    for (int fd = 0; fd < FD_SETSIZE; fd++) {
        const struct client *in = &active[fd];
        if (in->ranked && in->rank == v->rank && is_open(in) && !hung_up(in) &&
            ancestry_leads(v->pid, in->pid))
            return in->session;
    }
    return ++count_of(v->rank)->n;
}

/* Forget queued programs that have disconnected: libpmix 3 reconnects after 4 s, and
 * would count as its rank's next program. */
static void forget_disconnected(void)
{
    struct client *v, *next;
    DL_FOREACH_SAFE (queued, v, next) {
        if (!hung_up(v))
            continue;
        struct rank_count *n = count_of(v->rank);
        n->n -= n->n == v->session;
        DL_DELETE(queued, v);
        close(v->fd);
        free(v);
    }
}

/* --- sessions ----------------------------------------------------------------------- */

/* libpmix closes a descriptor before it handles the disconnection, but in the thread that
 * handles new clients, too; so that order is safe. */
static const struct client *earlier_active(const struct client *v)
{
    for (int fd = 0; v->session > 1 && fd < FD_SETSIZE; fd++) {
        if (active[fd].session > 0 && active[fd].session < v->session &&
            is_open(&active[fd]))
            return &active[fd];
    }
    return NULL;
}

static bool may_enter(const struct client *v)
{
    if (earlier_active(v))
        return false;
    const struct client *other;
    DL_FOREACH (queued, other) {
        if (other->session < v->session)
            return false;
    }
    return true;
}

static void enter(const struct client *v)
{
    if (v->fd < FD_SETSIZE)
        active[v->fd] = *v;
}

bool sessions_admit(int fd, pid_t who)
{
    struct stat st;
    struct client v = {.fd = fd, .pid = who};
    v.ranked = rank_of(who, &v.rank);
    if (fstat(fd, &st) == 0)
        v.socket = st.st_ino;
    if (fd < FD_SETSIZE)
        active[fd].session = 0; /* the descriptor's former connection is closed */
    forget_disconnected();
    v.session = session_of(&v);
    if (may_enter(&v)) {
        enter(&v);
        return true;
    }
    v.since = now_ms();
    struct client *copy = xmemdup(&v, sizeof v);
    DL_APPEND(queued, copy);
    return false;
}

int sessions_take(void)
{
    struct client *v;
    forget_disconnected();
    DL_FOREACH (queued, v) {
        if (may_enter(v))
            break;
    }
    if (!v)
        return -1;
    int fd = v->fd;
    DL_DELETE(queued, v);
    enter(v);
    free(v);
    return fd;
}

size_t sessions_queued(void)
{
    size_t n;
    const struct client *v;
    DL_COUNT(queued, v, n);
    return n;
}

bool sessions_late(int64_t ms, unsigned *rank, unsigned *of)
{
    struct client *v;
    const struct client *earlier;
    forget_disconnected();
    DL_FOREACH (queued, v) {
        if (v->reported || now_ms() - v->since < ms || !(earlier = earlier_active(v)))
            continue;
        v->reported = true;
        *rank = v->rank;
        *of = earlier->rank;
        return true;
    }
    return false;
}

bool sessions_active(int fd)
{
    return fd < FD_SETSIZE && is_open(&active[fd]);
}
