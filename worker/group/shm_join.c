/* worker/group/shm_join.c - how the ranks of a host set up their shared memory
 *
 * Each rank listens before the others know its address. The leader (local rank 0) creates
 * the memory file and connects to each of the others, shows that rank's token and passes
 * the descriptor; they map it, fill in their control blocks, take their locks and report
 * one byte, or why they cannot. When all have, the leader sends "go", or why it gives up.
 *
 * Each message is one packet. Both sides check that the other one is of the same user. A
 * rank that dies closes its sockets, so that no rank waits for the deadline.
 */
#include "worker/group/shm.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "common/sock.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/membarrier.h>
#include <poll.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

static const char shm_magic[8] = "ddpshm4";

enum {
    HUGE_PAGE = 2 << 20,
    PAGE = 4096,
    LOOK_MS = 100,
    TOKEN_MS = 1000, /* a connection's time to send the token */
    WHY_MS = 1000    /* extra wait for the leader's error: its deadline may be later */
};

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
    /* where shared memory has huge pages, the kernel chooses a place that they fit */
    char *base =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, s->fd, 0);
    if (base == MAP_FAILED)
        return err_errno(err, "cannot map %zu bytes of shared memory", bytes);
    s->bytes = bytes;
    segment_parts(s, (size_t)s->n, arena_bytes, base);
    madvise(s->arena, align_up(arena_bytes, HUGE_PAGE), MADV_HUGEPAGE);
    return 0;
}

/* Fill in this rank's control block, and take the lock that shows it is alive. */
static int move_in(struct shm *s, struct ddp_err *err)
{
    struct shm_rank *me = &s->rank[s->me];
    affinity_get(0, &me->cpus);
    me->process = process_id();
    me->unheard =
        syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) < 0;
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
    struct affinity cpus = {0};
    bool heard = true;
    for (int i = 0; i < s->n; i++) {
        affinity_add(&cpus, &s->rank[i].cpus);
        s->shares_cpu |= s->rank[i].shares_cpu;
        heard &= !s->rank[i].unheard;
    }
    bool crowded = affinity_count(&cpus) < s->n;
    shares_cpu |= crowded;
    s->shares_cpu |= crowded;
    s->barriers = heard && !s->shares_cpu;
}

static int blame(const struct shm *s, int local, const char *what, struct ddp_err *err)
{
    return layout_blame(s->layout, s->ranks[local], what, err);
}

/* A connection to a local rank's listener; -1 with errno. */
static int connect_rank(const struct shm *s, int local)
{
    struct sockaddr_un sa;
    socklen_t size = listener_address(s->layout->members[s->ranks[local]].token, &sa);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&sa, size) < 0)
        close_fd(&fd); /* keeps errno */
    return fd;
}

static bool is_same_user(int conn)
{
    struct ucred peer;
    socklen_t len = sizeof peer;
    return getsockopt(conn, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 &&
           peer.uid == geteuid();
}

/* ---- the leader ---- */

static int make_segment(struct shm *s, size_t arena_bytes, struct ddp_err *err)
{
    struct rlimit files;
    if (arena_bytes > INT64_MAX / 2 / (size_t)s->n)
        return err_set(err, "an arena of %zu bytes for each rank is more than memory has",
                       arena_bytes);
    size_t bytes = segment_parts(s, (size_t)s->n, arena_bytes, NULL);
    if (getrlimit(RLIMIT_FSIZE, &files) == 0 && bytes > files.rlim_cur) /* else SIGXFSZ */
        return err_set(err,
                       "cannot make %zu bytes of shared memory: this process may write "
                       "%llu to a file (raise 'ulimit -f')",
                       bytes, (unsigned long long)files.rlim_cur);
    s->fd = memfd_create("ddpgroup", MFD_CLOEXEC);
    if (s->fd < 0 || ftruncate(s->fd, (off_t)bytes) < 0)
        return err_errno(err, "cannot make %zu bytes of shared memory", bytes);
    TRY(map_segment(s, bytes, arena_bytes, err));
    TRY(move_in(s, err));
    *s->head =
        (struct shm_head){.bytes = bytes, .arena_bytes = arena_bytes, .nlocal = s->n};
    memcpy(s->head->magic, shm_magic, sizeof shm_magic);
    return 0;
}

/* Connect to a rank that listens: its process ends with its listening socket. Strangers
 * may fill its queue until it accepts. */
static int call_rank(const struct shm *s, int local, int *conn, int64_t deadline_ms,
                     struct ddp_err *err)
{
    const struct member *m = &s->layout->members[s->ranks[local]];
    while ((*conn = connect_rank(s, local)) < 0 && errno == EAGAIN &&
           now_ms() < deadline_ms)
        sched_yield();
    if (*conn < 0 && errno != ECONNREFUSED)
        return err_errno(err, "cannot let the ranks of this host share memory");
    if (*conn < 0 || !is_same_user(*conn) ||
        send(*conn, m->token, TOKEN_BYTES, MSG_NOSIGNAL) < 0)
        return blame(s, local, "has gone while joining", err);
    return 0;
}

/* Pass the memory to the others, and wait until they have mapped it. */
static int hand_over(const struct shm *s, const int *conns, int64_t *deadline_ms,
                     struct ddp_err *err)
{
    char said[sizeof err->text];
    for (int i = 1; i < s->n; i++) {
        if (sock_send_fds(conns[i], &s->fd, 1) < 0)
            return blame(s, i, "has gone while joining", err);
    }
    for (int i = 1; i < s->n; i++) {
        if (sock_await_extend(conns[i], POLLIN, deadline_ms) < 0)
            return blame(s, i, "has not come to share memory in time", err);
        ssize_t n = recv(conns[i], said, sizeof said, 0);
        if (n <= 0)
            return blame(s, i, "has gone while joining", err);
        if (n > 1)
            return err_set(err, "%s: %.*s", layout_who(s->layout, s->ranks[i]).text,
                           (int)n, said);
    }
    return 0;
}

/* Sends the outcome to all ranks that are connected. */
static int lead(struct shm *s, size_t arena_bytes, int64_t deadline_ms,
                struct ddp_err *err)
{
    struct ddp_err unwanted;
    OWNED int *conns = xcalloc((size_t)s->n, sizeof *conns);
    int rc = make_segment(s, arena_bytes, err);
    for (int i = 1; i < s->n; i++) {
        if (call_rank(s, i, &conns[i], deadline_ms, rc < 0 ? &unwanted : err) < 0)
            rc = -1;
    }
    if (rc == 0)
        rc = hand_over(s, conns, &deadline_ms, err);
    for (int i = 1; i < s->n; i++) {
        const char *say = rc == 0 ? go : err->text;
        if (conns[i] >= 0 && send(conns[i], say, strlen(say), MSG_NOSIGNAL) < 0 &&
            rc == 0)
            rc = blame(s, i, "has gone while joining", err);
        close_fd(&conns[i]);
    }
    return rc;
}

/* ---- the others ---- */

/* Does the connection show this rank's token? */
static bool is_leader(const struct shm *s, int conn)
{
    unsigned char token[TOKEN_BYTES];
    return is_same_user(conn) && sock_await(conn, POLLIN, now_ms() + TOKEN_MS) == 0 &&
           recv(conn, token, sizeof token, 0) == (ssize_t)sizeof token &&
           token_same(token, s->layout->members[s->layout->rank].token);
}

/* Is the leader's listening socket open? It closes when it has given up or ended. */
static bool leader_listens(const struct shm *s)
{
    SCOPED(close_fd) int fd = connect_rank(s, 0);
    return fd >= 0 || errno != ECONNREFUSED;
}

static int await_leader(const struct shm *s, int listener, int64_t *deadline_ms,
                        struct ddp_err *err)
{
    for (;;) {
        int64_t now = now_ms();
        if (now >= *deadline_ms) /* strangers may keep connecting */
            return blame(s, 0, "has not handed over the shared memory in time", err);
        bool comes = sock_await(listener, POLLIN, now + LOOK_MS) == 0;
        limit_extend(deadline_ms, now, LOOK_MS);
        if (!comes) {
            if (leader_listens(s) || sock_await(listener, POLLIN, 0) == 0)
                continue;
            return blame(s, 0,
                         "has given up or ended while joining (or if it is on another "
                         "machine, give each its own DDP_HOST_ID)",
                         err);
        }
        int conn = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (conn < 0)
            return err_errno(err, "cannot share memory with %s",
                             layout_who(s->layout, s->ranks[0]).text);
        if (is_leader(s, conn))
            return conn;
        close(conn);
    }
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

/* The leader's next packet is one byte (with the memory), or "go": 0; or why it gives up.
 */
static int hear_leader(const struct shm *s, int conn, int flags, int64_t *deadline_ms,
                       struct ddp_err *err)
{
    char said[sizeof err->text];
    if (sock_await_extend(conn, POLLIN, deadline_ms) < 0)
        return err_set(err, "a rank of this host has not come to share memory in time");
    ssize_t n = recv(conn, said, sizeof said - 1, flags);
    if (n < 0) /* it has not read all that was sent: what it said before is there */
        n = recv(conn, said, sizeof said - 1, flags);
    if (n <= 0)
        return blame(s, 0, "has given up or ended while joining", err);
    said[n] = '\0';
    return n == 1 || strcmp(said, go) == 0 ? 0 : err_set(err, "%s", said);
}

/* The leader has sent its memory. */
static int take_memory(struct shm *s, int conn, struct ddp_err *err)
{
    if ((s->fd = sock_recv_fd(conn)) < 0)
        return err_errno(err, "cannot share memory with %s",
                         layout_who(s->layout, s->ranks[0]).text);
    TRY(map_given(s, err));
    return move_in(s, err);
}

static int follow(struct shm *s, int listener, int64_t deadline_ms, struct ddp_err *err)
{
    SCOPED(close_fd) int conn = await_leader(s, listener, &deadline_ms, err);
    if (conn < 0)
        return -1;
    deadline_ms += WHY_MS;
    TRY(hear_leader(s, conn, MSG_PEEK, &deadline_ms, err));
    int rc = take_memory(s, conn, err);
    const char *say = rc < 0 ? err->text : "d";
    /* a leader that has given up says why */
    (void)!send(conn, say, strlen(say), MSG_NOSIGNAL);
    return rc < 0 ? -1 : hear_leader(s, conn, 0, &deadline_ms, err);
}

struct shm *shm_join(const struct layout *l, int listener, size_t arena_bytes,
                     int64_t timeout_ms, struct ddp_err *err)
{
    int64_t deadline_ms = now_ms() + timeout_ms;
    struct shm *s = xcalloc(1, sizeof *s);
    s->layout = l;
    s->arena_asked = arena_bytes;
    s->fd = -1;
    s->ranks = layout_host(l, l->members[l->rank].host, &s->n);
    s->me = l->members[l->rank].local;
    s->in = xcalloc((size_t)s->n, sizeof *s->in);
    s->out = xcalloc((size_t)s->n, sizeof *s->out);
    int rc = s->me == 0 ? lead(s, arena_bytes, deadline_ms, err)
                        : follow(s, listener, deadline_ms, err);
    if (rc < 0) {
        shm_leave(s, true);
        return NULL;
    }
    choose_waiting(s);
    return s;
}
