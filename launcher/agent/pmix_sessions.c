/* launcher/agent/pmix_sessions.c - see pmix_sessions.h */
#include "launcher/agent/pmix_sessions.h"

#include "common/ancestry.h"
#include "common/duration.h"
#include "common/mem.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utlist.h>

/* A program at the admission, or inside. */
struct visitor {
    int fd;
    ino_t socket; /* which it was: the number may be another descriptor's meanwhile */
    pid_t pid;
    bool ranked; /* its rank is known */
    unsigned rank;
    unsigned turn; /* the how-manieth of its rank it is, from 1 */
    int64_t since; /* kept */
    bool told;     /* it has been told of */
    struct visitor *prev, *next;
};

/* How many programs of a rank have come. */
struct visits {
    unsigned rank, n;
    struct visits *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct visitor
    inside[FD_SETSIZE];       /* by `fd`: more than that libpmix cannot have */
static struct visitor *kept;  /* owned, in the order in which they came */
static struct visits *visits; /* owned, until the process ends */

/* --- who is it ---------------------------------------------------------------------- */

/* Which rank a process was started as, by what the contract put into its environment. */
static bool rank_of(pid_t pid, unsigned *rank)
{
    char path[48];
    char *text = NULL;
    size_t room = 0;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    FILE *f = fopen(path, "re");
    while (f && !found && getdelim(&text, &room, '\0', f) > 0)
        found = sscanf(text, "PMIX_RANK=%u", rank) == 1;
    if (f)
        fclose(f);
    free(text);
    return found;
}

static bool stays(const struct visitor *v)
{
    struct stat st;
    return v->turn > 0 && fstat(v->fd, &st) == 0 && st.st_ino == v->socket;
}

/* Has the other end been closed? We may have to close ours yet. */
static bool hung_up(const struct visitor *v)
{
    return poll(&(struct pollfd){.fd = v->fd, .events = POLLRDHUP}, 1, 0) > 0;
}

static struct visits *visits_of(unsigned rank)
{
    struct visits *n;
    LL_SEARCH_SCALAR(visits, n, rank, rank);
    if (!n) {
        n = xcalloc(1, sizeof *n);
        n->rank = rank;
        LL_PREPEND(visits, n);
    }
    return n;
}

static unsigned turn_of(const struct visitor *v)
{
    if (!v->ranked)
        return 1;
    for (int fd = 0; fd < FD_SETSIZE; fd++) {
        const struct visitor *in = &inside[fd];
        if (in->ranked && in->rank == v->rank && stays(in) && !hung_up(in) &&
            ancestry_leads(v->pid, in->pid))
            return in->turn;
    }
    return ++visits_of(v->rank)->n;
}

/* Who has hung up while it waited has not come: libpmix 3 tries again after 4 s, and
 * would be taken for its rank's next program. */
static void forget_the_gone(void)
{
    struct visitor *v, *next;
    DL_FOREACH_SAFE (kept, v, next) {
        if (!hung_up(v))
            continue;
        struct visits *n = visits_of(v->rank);
        n->n -= n->n == v->turn;
        DL_DELETE(kept, v);
        close(v->fd);
        free(v);
    }
}

/* --- turns -------------------------------------------------------------------------- */

/* libpmix closes a descriptor before it does what follows from it, but in the thread that
 * will also hear who comes in now. */
static const struct visitor *earlier_inside(const struct visitor *v)
{
    for (int fd = 0; v->turn > 1 && fd < FD_SETSIZE; fd++) {
        if (inside[fd].turn > 0 && inside[fd].turn < v->turn && stays(&inside[fd]))
            return &inside[fd];
    }
    return NULL;
}

static bool may_enter(const struct visitor *v)
{
    if (earlier_inside(v))
        return false;
    const struct visitor *other;
    DL_FOREACH (kept, other) {
        if (other->turn < v->turn)
            return false;
    }
    return true;
}

static void enter(const struct visitor *v)
{
    if (v->fd < FD_SETSIZE)
        inside[v->fd] = *v;
}

static struct visitor *next_ready(void)
{
    struct visitor *v;
    forget_the_gone();
    DL_FOREACH (kept, v) {
        if (may_enter(v))
            return v;
    }
    return NULL;
}

bool sessions_arrive(int fd, pid_t who)
{
    struct stat st;
    struct visitor v = {.fd = fd, .pid = who};
    v.ranked = rank_of(who, &v.rank);
    if (fstat(fd, &st) == 0)
        v.socket = st.st_ino;
    pthread_mutex_lock(&lock);
    if (fd < FD_SETSIZE)
        inside[fd].turn = 0; /* who had the number has gone */
    forget_the_gone();
    v.turn = turn_of(&v);
    bool may = may_enter(&v);
    if (may) {
        enter(&v);
    } else {
        v.since = now_ms();
        struct visitor *copy = xmemdup(&v, sizeof v);
        DL_APPEND(kept, copy);
    }
    pthread_mutex_unlock(&lock);
    return may;
}

int sessions_take(void)
{
    pthread_mutex_lock(&lock);
    struct visitor *v = next_ready();
    int fd = v ? v->fd : -1;
    if (v) {
        DL_DELETE(kept, v);
        enter(v);
        free(v);
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

size_t sessions_kept(void)
{
    size_t n;
    const struct visitor *v;
    pthread_mutex_lock(&lock);
    DL_COUNT(kept, v, n);
    pthread_mutex_unlock(&lock);
    return n;
}

bool sessions_ready(void)
{
    pthread_mutex_lock(&lock);
    bool ready = next_ready() != NULL;
    pthread_mutex_unlock(&lock);
    return ready;
}

bool sessions_late(int64_t ms, unsigned *rank, unsigned *of)
{
    struct visitor *v;
    const struct visitor *earlier = NULL;
    pthread_mutex_lock(&lock);
    forget_the_gone();
    DL_FOREACH (kept, v) {
        if (v->told || now_ms() - v->since < ms || !(earlier = earlier_inside(v)))
            continue;
        v->told = true;
        *rank = v->rank;
        *of = earlier->rank;
        break;
    }
    pthread_mutex_unlock(&lock);
    return earlier != NULL;
}

bool sessions_inside(int fd)
{
    pthread_mutex_lock(&lock);
    bool in = fd < FD_SETSIZE && stays(&inside[fd]);
    pthread_mutex_unlock(&lock);
    return in;
}
