/* launcher/peer/local_copies.c - see local_copies.h
 *
 * One message each way. An instance reports its CPUs and its GPUs (CUDA_VISIBLE_DEVICES),
 * which differ where the outer launcher binds each task to its own. The leader sends the
 * exit code.
 */
#define LOG_SUBSYS "peers"
#include "launcher/peer/local_copies.h"

#include "common/affinity.h"
#include "common/ancestry.h"
#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/secret.h"
#include "common/sock.h"
#include "launcher/transport/program.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { RETRY_MS = 20, GPUS_MAX = 131072 /* the kernel's limit of a variable */ };

struct report {
    int32_t local_rank;
    struct affinity cpus;
    char gpus[GPUS_MAX]; /* "": not set; sent up to its end */
};

struct local_copies {
    int *fds; /* owned, by local rank; [0] is the leader itself: -1 */
    int n;
    int gone_fd; /* owned: an epoll of all of them; readable when one has ended */
};

static socklen_t address(const struct ambient_job *o, struct sockaddr_un *sa)
{
    struct secret none = {{0}}, name;
    char hex[SECRET_SIZE * 2 + 1];
    OWNED char *where = xasprintf("%u %s", (unsigned)geteuid(), o->node ? o->node : "");
    secret_derive(&none, "ddprun mates", o->id, strlen(o->id), where, strlen(where),
                  &name);
    secret_to_hex(&name, hex);
    *sa = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(sa->sun_path + 1, sizeof sa->sun_path - 1, "ddprun-%.40s", hex);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
}

/* The process at the other end; 0: of another user, or in another PID namespace. */
static pid_t peer_pid(int fd, bool *ours)
{
    struct ucred c = {0};
    socklen_t len = sizeof c;
    *ours = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &c, &len) == 0 && c.uid == geteuid();
    return *ours ? c.pid : 0;
}

/* --- the leader --------------------------------------------------------------------- */

static bool has_item(const char *list, const char *word, size_t len)
{
    for (const char *p = list; *p; p += strspn(p, ",")) {
        size_t n = strcspn(p, ",");
        if (n == len && memcmp(p, word, n) == 0)
            return true;
        p += n;
    }
    return false;
}

/* Append the devices of one instance to those of all, in task order. */
static void join_gpus(char **all, const char *more)
{
    for (const char *p = more; *p; p += strspn(p, ",")) {
        size_t n = strcspn(p, ",");
        if (!has_item(*all, p, n))
            xappendf(all, "%s%.*s", **all ? "," : "", (int)n, p);
        p += n;
    }
}

static void adopt_resources(const struct report *reports, int n)
{
    struct affinity cpus = {0};
    OWNED char *gpus = xstrdup("");
    for (int i = 0; i < n; i++) {
        affinity_add(&cpus, &reports[i].cpus);
        join_gpus(&gpus, reports[i].gpus);
    }
    if (affinity_count(&cpus) > affinity_count(&reports[0].cpus) &&
        sched_setaffinity(0, sizeof cpus, cpus.sets) == 0)
        log_info("%d instances have %d CPUs together", n, affinity_count(&cpus));
    if (*gpus)
        setenv("CUDA_VISIBLE_DEVICES", gpus, 1);
}

/* Fill in `r`, which is zeroed; the size of its message. */
static size_t fill_report(const struct ambient_job *o, struct report *r)
{
    const char *gpus = getenv("CUDA_VISIBLE_DEVICES");
    r->local_rank = o->local_rank;
    affinity_get(0, &r->cpus);
    snprintf(r->gpus, sizeof r->gpus, "%s", gpus ? gpus : "");
    return offsetof(struct report, gpus) + strlen(r->gpus) + 1;
}

/* Receive one instance's report; the caller may be any process. */
static bool admit(struct local_copies *m, int fd, int64_t *deadline_ms,
                  struct report *reports)
{
    OWNED struct report *r = xcalloc(1, sizeof *r);
    bool ours;
    ssize_t size;
    peer_pid(fd, &ours);
    if (!ours || sock_await_extend(fd, POLLIN, deadline_ms) < 0 ||
        (size = recv(fd, r, sizeof *r - 1, 0)) < (ssize_t)offsetof(struct report, gpus) ||
        r->local_rank < 1 || r->local_rank >= m->n || m->fds[r->local_rank] >= 0)
        return false;
    m->fds[r->local_rank] = fd;
    memcpy(&reports[r->local_rank], r, (size_t)size);
    return true;
}

static int missing(const struct local_copies *m, const struct ambient_job *o,
                   struct ddp_err *err)
{
    int i = 1, n = 0;
    for (int k = m->n - 1; k > 0; k--) {
        n += m->fds[k] < 0;
        i = m->fds[k] < 0 ? k : i;
    }
    return err_set(
        err,
        "%s has started %d instances of ddprun on this node, and %d of them, such "
        "as the one with local rank %d, have not reported; "
        "--start-timeout waits longer",
        o->by, m->n, n, i);
}

/* After its report an instance sends nothing: only its end is waited for. */
static int watch(struct local_copies *m, struct ddp_err *err)
{
    struct epoll_event end = {.events = EPOLLRDHUP};
    bool all = (m->gone_fd = epoll_create1(EPOLL_CLOEXEC)) >= 0;
    for (int i = 1; i < m->n && all; i++)
        all = epoll_ctl(m->gone_fd, EPOLL_CTL_ADD, m->fds[i], &end) == 0;
    return all ? 0 : err_errno(err, "cannot watch the other instances on this node");
}

int local_copies_gone_fd(const struct local_copies *m)
{
    return m ? m->gone_fd : -1;
}

struct local_copies *local_copies_lead(const struct ambient_job *o, int64_t deadline_ms,
                                       struct ddp_err *err)
{
    struct sockaddr_un sa;
    socklen_t len = address(o, &sa);
    struct local_copies *m = xcalloc(1, sizeof *m);
    OWNED struct report *reports = xcalloc((size_t)o->local_size, sizeof *reports);
    *m = (struct local_copies){.n = o->local_size, .gone_fd = -1};
    m->fds = xcalloc((size_t)m->n, sizeof *m->fds);
    memset(m->fds, -1, (size_t)m->n * sizeof *m->fds);
    fill_report(o, &reports[0]);
    int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), have = 1, rc = 0;
    if (listener < 0 || bind(listener, (struct sockaddr *)&sa, len) < 0 ||
        listen(listener, 512) < 0)
        rc = err_errno(err, "cannot listen for the other instances on this node");
    while (rc == 0 && have < m->n) {
        if (sock_await_extend(listener, POLLIN, &deadline_ms) < 0 ||
            now_ms() >= deadline_ms) { /* strangers may keep connecting */
            rc = missing(m, o, err);
            break;
        }
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0 && admit(m, fd, &deadline_ms, reports))
            have++;
        else if (fd >= 0)
            close(fd);
        else if (errno != EINTR && errno != EAGAIN && errno != ECONNABORTED)
            rc = err_errno(err, "cannot accept the other instances on this node");
    }
    close_fd(&listener);
    if (rc == 0 && (rc = watch(m, err)) == 0)
        adopt_resources(reports, m->n);
    if (rc == 0)
        return m;
    local_copies_end(m, EXIT_CANNOT_START);
    return NULL;
}

void local_copies_forget(struct local_copies *m)
{
    for (int i = 1; m && i < m->n; i++)
        close_fd(&m->fds[i]);
    if (m && m->gone_fd >= 0)
        close(m->gone_fd);
    if (m)
        free(m->fds);
    free(m);
}

void local_copies_end(struct local_copies *m, int code)
{
    int32_t message = code;
    for (int i = 1; m && i < m->n; i++) {
        if (m->fds[i] >= 0)
            send(m->fds[i], &message, sizeof message, MSG_NOSIGNAL);
    }
    local_copies_forget(m);
}

/* --- the others --------------------------------------------------------------------- */

static int connect_leader(const struct ambient_job *o, int64_t deadline_ms,
                          struct ddp_err *err)
{
    struct sockaddr_un sa;
    socklen_t len = address(o, &sa);
    for (;;) {
        int64_t began_ms = now_ms();
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, (struct sockaddr *)&sa, len) == 0)
            return fd;
        close_fd(&fd);
        sleep_ms(RETRY_MS);
        limit_extend(&deadline_ms, began_ms, RETRY_MS);
        if (now_ms() >= deadline_ms)
            return err_set(err,
                           "%s has started %d instances of ddprun on this node, and the "
                           "first of them does not answer",
                           o->by, o->local_size);
    }
}

static volatile sig_atomic_t leader;

/* Several instances may forward one signal: as TERM, as a second INT would kill. */
static void on_end_signal(int sig)
{
    int saved = errno;
    if (leader > 0)
        kill(leader, SIGTERM);
    errno = saved;
}

static void forward_end_signals(pid_t to)
{
    struct sigaction end = {.sa_handler = on_end_signal, .sa_flags = SA_RESTART},
                     none = {.sa_handler = SIG_IGN};
    leader = to;
    sigaction(SIGTERM, &end, NULL);
    sigaction(SIGINT, &end, NULL);
    sigaction(SIGHUP, &end, NULL);
    sigaction(SIGQUIT, &end, NULL);
    sigaction(SIGUSR1, &none, NULL); /* the leader gets them itself */
    sigaction(SIGUSR2, &none, NULL);
}

int local_copies_follow(const struct ambient_job *o, int64_t deadline_ms,
                        struct ddp_err *err)
{
    OWNED struct report *r = xcalloc(1, sizeof *r);
    size_t size = fill_report(o, r);
    int32_t code;
    bool ours;
    SCOPED(close_fd) int fd = connect_leader(o, deadline_ms, err);
    if (fd < 0)
        return EXIT_CANNOT_START;
    pid_t pid = peer_pid(fd, &ours);
    ssize_t n = -1;
    if (!ours) {
        err_set(err, "another user listens at this job's socket on this node");
    } else if (send(fd, r, size, MSG_NOSIGNAL) == (ssize_t)size) {
        forward_end_signals(pid);
        do
            n = recv(fd, &code, sizeof code, 0);
        while (n < 0 && errno == EINTR);
    }
    if (ours && n != (ssize_t)sizeof code)
        err_set(err, "the leading instance of ddprun on this node was killed");
    return n == (ssize_t)sizeof code ? code : EXIT_CANNOT_START;
}

/* --- binding ------------------------------------------------------------------------ */

void local_copies_unbind(void)
{
    /* prefixes: Debian has mpirun.openmpi */
    static const char *const daemons[] = {"orted",   "orterun", "mpirun",
                                          "mpiexec", "prte",    "hydra_pmi_prox"};
    char comm[ANCESTRY_NAME] = "";
    pid_t pid = getppid();
    for (int depth = 0; depth < 8 && pid > 1; depth++) {
        pid_t parent = ancestry_parent(pid, comm);
        for (size_t i = 0; i < ARRAY_LEN(daemons); i++) {
            struct affinity ours, theirs;
            if (strncmp(comm, daemons[i], strlen(daemons[i])) != 0)
                continue;
            if (affinity_get(pid, &theirs) == 0 && affinity_get(0, &ours) == 0 &&
                affinity_count(&theirs) > affinity_count(&ours) &&
                sched_setaffinity(0, sizeof theirs, theirs.sets) == 0)
                log_info("bound to %d CPU%s by %s: taking its %d for all ranks",
                         affinity_count(&ours), affinity_count(&ours) == 1 ? "" : "s",
                         comm, affinity_count(&theirs));
            return;
        }
        pid = parent;
    }
}
