/* worker/group/shm_join.c - how the ranks of a host set up their shared memory
 *
 * The others connect to the leader (local rank 0) and send their local rank and token.
 * The leader creates the memory file, checks user and token, and passes the descriptor;
 * the others map it, fill in their control blocks, take their locks and report "done".
 * When all have, the leader sends "go", or the error.
 *
 * Each message is one packet. A rank that dies closes its socket, or, before it has
 * connected, its listening socket, so that no rank waits for the deadline.
 */
#include "worker/group/shm.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "common/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char shm_magic[8] = "ddpshm3";

struct hello {
    unsigned char token[TOKEN_BYTES];
    int32_t local;
};

enum { HUGE_PAGE = 2 << 20, PAGE = 4096, LOOK_MS = 100, WHY_MS = 1000 };

/* This process belongs to a group with more ranks on this host than CPUs. */
static _Atomic bool shares_cpu;

static const char go[] = "go"; /* anything else is an error text */

static size_t align_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Where the parts lie. Returns the size of all. */
static size_t segment_parts(struct shm *s, size_t n, size_t arena_bytes, char *base)
{
    size_t at = PAGE, ranks = at;
    at = align_up(at + n * sizeof(struct shm_rank), PAGE);
    size_t staging = at;
    at += n * SHM_STAGES * (size_t)SHM_CHUNK;
    size_t rings = at;
    at = align_up(at + n * n * sizeof(struct ring), HUGE_PAGE);
    size_t arena = align_up(arena_bytes, HUGE_PAGE);
    if (base) {
        s->base = base;
        s->head = (struct shm_head *)(void *)base;
        s->rank = (struct shm_rank *)(void *)(base + ranks);
        s->staging = base + staging;
        s->rings = (struct ring *)(void *)(base + rings);
        s->arena = base + at + arena * (size_t)s->me;
        s->arena_bytes = arena_bytes;
        s->arena_stride = (ptrdiff_t)arena;
    }
    return at + n * arena;
}

/* Two ranks are one process when they are threads of it (tests do that). Containers that
 * share a host's memory may number their processes alike. */
static uint64_t process_id(void)
{
    struct stat numbers;
    ino_t space = stat("/proc/self/ns/pid", &numbers) == 0 ? numbers.st_ino : 0;
    return (uint64_t)space << 32 | (uint64_t)getpid();
}

static int map_segment(struct shm *s, size_t bytes, size_t arena_bytes,
                       struct ddp_err *err)
{
    /* ask for a place that huge pages fit */
    char *room = mmap(NULL, bytes + HUGE_PAGE, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return err_errno(err, "cannot reserve %zu bytes of address space", bytes);
    char *base = room + (HUGE_PAGE - (uintptr_t)room % HUGE_PAGE) % HUGE_PAGE;
    if (mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE | MAP_FIXED,
             s->fd, 0) == MAP_FAILED) {
        err_errno(err, "cannot map %zu bytes of shared memory", bytes);
        munmap(room, bytes + HUGE_PAGE);
        return -1;
    }
    if (base > room)
        munmap(room, (size_t)(base - room));
    munmap(base + bytes, (size_t)(room + HUGE_PAGE - base));
    s->bytes = bytes;
    segment_parts(s, (size_t)s->n, arena_bytes, base);
    madvise(s->arena, align_up(arena_bytes, HUGE_PAGE), MADV_HUGEPAGE);
    return 0;
}

/* Fill in this rank's control block, and take the lock that shows it is alive. */
static int move_in(struct shm *s, struct ddp_err *err)
{
    struct shm_rank *me = &s->rank[s->me];
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    sched_getaffinity(0, sizeof cpus, &cpus);
    for (size_t c = 0; c < SHM_CPUS; c++) {
        if (CPU_ISSET(c, &cpus))
            me->cpus[c / 8] |= (unsigned char)(1 << c % 8);
    }
    me->process = process_id();
    me->unheard = !shm_join_barriers();
    me->shares_cpu = shares_cpu;
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = s->me, .l_len = 1};
    if (fcntl(s->fd, F_SETLK, &lock) < 0)
        return err_errno(err, "cannot lock a byte of the shared memory file");
    return 0;
}

/* Spinning pays while each rank has a CPU; otherwise, also in a smaller group of the same
 * ranks, it keeps the awaited rank or another one from running. Then all sleep often, and
 * membarrier(), which is expensive, moves to the waking side. */
static void choose_waiting(struct shm *s)
{
    int ncpus = 0;
    for (size_t byte = 0; byte < sizeof s->rank->cpus; byte++) {
        unsigned all = 0;
        for (int i = 0; i < s->n; i++)
            all |= s->rank[i].cpus[byte];
        ncpus += __builtin_popcount(all);
    }
    bool crowded = ncpus < s->n, heard = true;
    for (int i = 0; i < s->n; i++) {
        s->shares_cpu |= s->rank[i].shares_cpu;
        heard &= !s->rank[i].unheard;
    }
    shares_cpu |= crowded;
    s->shares_cpu |= crowded;
    s->barriers = heard && !s->shares_cpu;
}

static int blame(const struct shm *s, int local, const char *what, struct ddp_err *err)
{
    return layout_blame(s->layout, s->ranks[local], what, err);
}

/* A connection to a local rank's listener, or a descriptor without; -1. */
static int connect_rank(const struct shm *s, int local, int flags, bool *connected)
{
    struct sockaddr_un sa;
    socklen_t size = listener_address(s->layout->members[s->ranks[local]].token, &sa);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0);
    *connected = fd >= 0 && connect(fd, (struct sockaddr *)&sa, size) == 0;
    return fd;
}

/* Is the rank's listening socket open? It closes when the process ends. */
static bool listener_is_open(const struct shm *s, int local)
{
    bool connected;
    SCOPED(close_fd) int fd = connect_rank(s, local, SOCK_NONBLOCK, &connected);
    return fd < 0 || connected || errno != ECONNREFUSED;
}

/* Wait until a rank connects, the deadline passes, or a missing rank has ended. */
static int await_connection(const struct shm *s, const struct listeners *listeners,
                            const int *conns, int64_t deadline_ms, struct ddp_err *err)
{
    for (;;) {
        int64_t look = now_ms() + LOOK_MS;
        if (now_ms() < deadline_ms && /* strangers may keep connecting */
            sock_await(listeners->unix_fd, POLLIN,
                       look < deadline_ms ? look : deadline_ms) == 0)
            return 0;
        int missing = 0;
        for (int i = s->n - 1; i > 0; i--) {
            if (conns[i] >= 0)
                continue;
            missing = i;
            if (!listener_is_open(s, i) && sock_await(listeners->unix_fd, POLLIN, 0) < 0)
                return blame(s, i, "has gone while joining", err);
        }
        if (now_ms() >= deadline_ms)
            return blame(s, missing, "has not come to share memory in time", err);
    }
}

/* Accept a connection: same user, right token, a rank that has not connected yet. */
static int admit(const struct shm *s, int conn, const int *conns, int64_t deadline_ms)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    struct hello h;
    int64_t patience = now_ms() + 1000;
    if (getsockopt(conn, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0 ||
        peer.uid != geteuid() ||
        sock_await(conn, POLLIN, patience < deadline_ms ? patience : deadline_ms) < 0 ||
        recv(conn, &h, sizeof h, 0) != (ssize_t)sizeof h)
        return -1;
    if (!token_same(h.token, s->layout->members[s->layout->rank].token) || h.local <= 0 ||
        h.local >= s->n || conns[h.local] >= 0)
        return -1;
    return h.local;
}

/* The next connection, which gets the memory if it is one of ours. */
static int take_next(const struct shm *s, const struct listeners *listeners, int *conns,
                     int64_t deadline_ms, struct ddp_err *err)
{
    int conn = accept4(listeners->unix_fd, NULL, NULL, SOCK_CLOEXEC);
    if (conn < 0)
        return err_errno(err, "cannot let the ranks of this host share memory");
    int local = admit(s, conn, conns, deadline_ms);
    if (local > 0 && sock_send_fds(conn, &s->fd, 1) == 0)
        conns[local] = conn;
    else
        close(conn);
    return 0;
}

/* Has every rank connected, but for those that have gone? */
static bool all_came(const struct shm *s, const int *conns)
{
    int i = 1;
    while (i < s->n && (conns[i] >= 0 || !listener_is_open(s, i)))
        i++;
    return i == s->n;
}

/* The leader has given up: ranks that come a moment later are told why, too. */
static void take_late(const struct shm *s, const struct listeners *listeners, int *conns)
{
    int64_t until = now_ms() + WHY_MS;
    while (!all_came(s, conns) && now_ms() < until &&
           sock_await(listeners->unix_fd, POLLIN, until) == 0 &&
           take_next(s, listeners, conns, until, NULL) == 0)
        ;
}

static int gather_conns(struct shm *s, const struct listeners *listeners, int *conns,
                        int64_t deadline_ms, struct ddp_err *err)
{
    for (int i = 1; i < s->n; i++) {
        while (conns[i] < 0) {
            TRY(await_connection(s, listeners, conns, deadline_ms, err));
            TRY(take_next(s, listeners, conns, deadline_ms, err));
        }
    }
    for (int i = 1; i < s->n; i++) {
        char done;
        if (sock_await(conns[i], POLLIN, deadline_ms) < 0)
            return blame(s, i, "has not mapped the shared memory in time", err);
        if (recv(conns[i], &done, 1, 0) != 1)
            return blame(s, i, "has gone while joining", err);
    }
    return 0;
}

static int lead(struct shm *s, const struct listeners *listeners, size_t arena_bytes,
                int64_t deadline_ms, struct ddp_err *err)
{
    size_t bytes = segment_parts(s, (size_t)s->n, arena_bytes, NULL);
    s->fd = memfd_create("ddpgroup", MFD_CLOEXEC);
    if (s->fd < 0 || ftruncate(s->fd, (off_t)bytes) < 0)
        return err_errno(err, "cannot make %zu bytes of shared memory", bytes);
    TRY(map_segment(s, bytes, arena_bytes, err));
    TRY(move_in(s, err));
    *s->head =
        (struct shm_head){.bytes = bytes, .arena_bytes = arena_bytes, .nlocal = s->n};
    memcpy(s->head->magic, shm_magic, sizeof shm_magic);
    OWNED int *conns = xcalloc((size_t)s->n, sizeof *conns);
    for (int i = 0; i < s->n; i++)
        conns[i] = -1;
    int rc = gather_conns(s, listeners, conns, deadline_ms, err);
    if (rc < 0)
        take_late(s, listeners, conns);
    for (int i = 1; i < s->n; i++) {
        const char *say = rc == 0 ? go : err->text;
        if (conns[i] < 0)
            continue;
        if (send(conns[i], say, strlen(say), MSG_NOSIGNAL) < 0 && rc == 0)
            rc = blame(s, i, "has gone while joining", err);
        close(conns[i]);
    }
    return rc;
}

static int connect_leader(const struct shm *s, struct ddp_err *err)
{
    const struct member *leader = &s->layout->members[s->ranks[0]];
    bool connected;
    int conn = connect_rank(s, 0, 0, &connected);
    struct hello h = {.local = s->me};
    memcpy(h.token, leader->token, sizeof h.token);
    if (!connected || send(conn, &h, sizeof h, MSG_NOSIGNAL) != (ssize_t)sizeof h) {
        err_errno(
            err,
            "cannot share memory with %s: it has given up or ended before this rank "
            "came (or if it is on another machine, give each its own DDP_HOST_ID)",
            layout_who(s->layout, s->ranks[0]).text);
        close_fd(&conn);
        return -1;
    }
    return conn;
}

/* Map the leader's file, after checking its first page. */
static int map_given(struct shm *s, struct ddp_err *err)
{
    struct shm_head head;
    if (pread(s->fd, &head, sizeof head, 0) != (ssize_t)sizeof head ||
        memcmp(head.magic, shm_magic, sizeof shm_magic) != 0 || head.nlocal != s->n ||
        head.bytes != segment_parts(s, (size_t)s->n, head.arena_bytes, NULL))
        return err_set(err, "the shared memory has another layout: do all ranks run the "
                            "same version of the library?");
    return map_segment(s, head.bytes, head.arena_bytes, err);
}

/* Wait for the leader's "go". */
static int be_let_go(const struct shm *s, int conn, int64_t deadline_ms,
                     struct ddp_err *err)
{
    char answer[sizeof err->text];
    if (sock_await(conn, POLLIN, deadline_ms) < 0)
        return err_set(err, "a rank of this host has not come to share memory in time");
    ssize_t n = recv(conn, answer, sizeof answer - 1, 0);
    if (n < 0) /* a leader that has not read all resets it; what it said is there */
        n = recv(conn, answer, sizeof answer - 1, 0);
    if (n <= 0)
        return blame(s, 0, "has given up or ended while joining", err);
    answer[n] = '\0';
    return strcmp(answer, go) == 0 ? 0 : err_set(err, "%s", answer);
}

static int follow(struct shm *s, int64_t deadline_ms, struct ddp_err *err)
{
    SCOPED(close_fd) int conn = connect_leader(s, err);
    if (conn < 0)
        return -1;
    if (sock_await(conn, POLLIN, deadline_ms) < 0)
        return blame(s, 0, "has not handed over the shared memory in time", err);
    if ((s->fd = sock_recv_fd(conn)) < 0)
        return blame(s, 0, "has given up or ended while joining", err);
    TRY(map_given(s, err));
    TRY(move_in(s, err));
    (void)!send(conn, "d", 1, MSG_NOSIGNAL); /* a leader that gave up has said why */
    return be_let_go(s, conn, deadline_ms, err);
}

struct shm *shm_join(const struct layout *l, const struct listeners *listeners,
                     size_t arena_bytes, int64_t deadline_ms, struct ddp_err *err)
{
    struct shm *s = xcalloc(1, sizeof *s);
    s->layout = l;
    s->fd = -1;
    s->ranks = layout_host(l, l->members[l->rank].host, &s->n);
    s->me = l->members[l->rank].local;
    s->in = xcalloc((size_t)s->n, sizeof *s->in);
    s->out = xcalloc((size_t)s->n, sizeof *s->out);
    int rc = s->me == 0 ? lead(s, listeners, arena_bytes, deadline_ms, err)
                        : follow(s, deadline_ms, err);
    if (rc < 0) {
        shm_leave(s, true);
        return NULL;
    }
    choose_waiting(s);
    return s;
}
