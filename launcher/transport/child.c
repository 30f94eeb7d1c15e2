/* launcher/transport/child.c - see child.h
 *
 * Between clone() and execve() the child runs in our memory on its own stack, while this
 * process is suspended. It may only call what changes nothing of ours: plain system
 * calls, no malloc, no stdio, no lock. Signals are blocked throughout, so none of our
 * handlers runs in it; its signal actions are a copy, and are reset before the mask is.
 *
 * The descriptor table is shared as well (CLONE_FILES) until the child takes a private
 * copy of its lowest part with close_range(CLOSE_RANGE_UNSHARE): with hundreds of pipes
 * open, copying the whole table and closing it again at exec costs more than everything
 * else. Therefore the three standard descriptors and the extra one are first moved to low
 * slots, which this process reserves from child_init() on.
 *
 * PR_SET_PDEATHSIG belongs to the thread that forks: the main thread, or the one in which
 * an agent starts ranks (common/background.h), which lives as long. A thread that forks
 * needs a stack and slots of its own (struct child_place).
 */
#include "launcher/transport/child.h"

#include "common/err.h"
#include "common/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/close_range.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC 4 /* Linux 5.11 */
#endif

enum { STACK_SIZE = 64 << 10, STREAMS = 3, SLOTS = STREAMS + 1, SIGNALS = 32 };

struct child_place {
    char *stack;      /* mapped */
    int slot;         /* the first reserved descriptor */
    uint32_t changed; /* by changed_signals(); not in the main thread's */
};

static struct child_place *mine; /* owned: the main thread's */
static int holder = -1; /* /dev/null, which fills the slots between two children */
static bool has_unshare;
static struct rlimit
    files; /* the limit at start: ours is raised, the children keep this one */

/* Passed between parent and child through shared memory. */
struct talk {
    const struct child_spec *spec;
    int slot;
    pid_t parent;
    const sigset_t *mask; /* the parent's, for the child */
    uint32_t changed;     /* by changed_signals() */
    enum child_step step; /* set by the child: the failed step */
    int error;            /* and why */
};

static _Noreturn void fail(struct talk *t, enum child_step step)
{
    t->error = errno;
    t->step = step;
    _exit(127);
}

/* A bit for each signal whose action is not the default one. Real-time signals are left
 * out: nothing here changes their actions. */
static uint32_t changed_signals(void)
{
    uint32_t changed = 0;
    for (int sig = 1; sig < SIGNALS; sig++) {
        struct sigaction sa;
        if (sigaction(sig, NULL, &sa) == 0 && sa.sa_handler != SIG_DFL)
            changed |= 1U << sig;
    }
    return changed;
}

static void default_signals(uint32_t changed)
{
    /* not on the stack: AddressSanitizer marks what is out of scope there, execve()
     * leaves the marks, and the next child has the same stack */
    static const struct sigaction sa = {.sa_handler = SIG_DFL};
    for (int sig = 1; sig < SIGNALS; sig++) {
        if (changed >> sig & 1)
            sigaction(sig, &sa, NULL);
    }
}

/* dup2() without a sanitizer, which would take the child's descriptors for ours. */
static int dup_to(int from, int to)
{
    return (int)syscall(SYS_dup3, from, to, 0);
}

/* dup2(), dup3() and F_DUPFD report a descriptor above the limit as EBADF and EINVAL. */
static int beyond_limit(void)
{
    if (errno == EBADF || errno == EINVAL)
        errno = EMFILE;
    return -1;
}

static int take_streams(int slot, bool extra)
{
    for (int fd = 0; fd < STREAMS; fd++) {
        if (dup_to(slot + fd, fd) < 0) /* clears close-on-exec */
            return -1;
    }
    return extra && dup_to(slot + STREAMS, CHILD_EXTRA_FD) < 0 ? beyond_limit() : 0;
}

static int child_main(void *arg)
{
    struct talk *t = arg;
    const struct child_spec *spec = t->spec;
    if (has_unshare &&
        syscall(__NR_close_range, t->slot + SLOTS, ~0U, CLOSE_RANGE_UNSHARE) < 0)
        fail(t, CHILD_SETUP);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0)
        fail(t, CHILD_SETUP);
    if (getppid() != t->parent) /* the parent died before prctl(): no signal will come */
        _exit(127);
    if ((spec->session && setsid() < 0) ||
        ((spec->group || spec->join) && setpgid(0, spec->join) < 0))
        fail(t, CHILD_SETUP);
    default_signals(t->changed);
    if (take_streams(t->slot, spec->extra > 0) < 0)
        fail(t, CHILD_SETUP);
    if (spec->terminal && ioctl(STDIN_FILENO, TIOCSCTTY, 0) < 0)
        fail(t, CHILD_SETUP);
    if (files.rlim_cur < files.rlim_max && setrlimit(RLIMIT_NOFILE, &files) < 0)
        fail(t, CHILD_SETUP);
    if (spec->cpus && sched_setaffinity(0, spec->cpus_size, spec->cpus) < 0)
        fail(t, CHILD_CPUS);
    prctl(PR_SET_NAME, basename(spec->path)); /* for ps, while execve() waits */
    if (spec->dir && chdir(spec->dir) < 0)
        fail(t, CHILD_DIR);
    sigprocmask(SIG_SETMASK, t->mask, NULL);
    execve(spec->path, spec->argv, spec->env);
    fail(t, CHILD_EXEC);
}

static int fill_slots(int slot, int in, int out, int err, int extra)
{
    const int ends[SLOTS] = {in, out, err, extra > 0 ? extra : -1};
    for (int i = 0; i < SLOTS; i++) {
        if (dup3(ends[i] < 0 ? holder : ends[i], slot + i, O_CLOEXEC) < 0)
            return beyond_limit();
    }
    return 0;
}

pid_t child_spawn(const struct child_spec *spec, enum child_step *step)
{
    sigset_t all, none, ours;
    sigfillset(&all);
    sigemptyset(&none);
    const struct child_place *place = spec->place ? spec->place : mine;
    struct talk t = {.spec = spec,
                     .slot = place->slot,
                     .parent = getpid(),
                     .mask = &none,
                     .changed = spec->place ? place->changed : changed_signals()};
    *step = CHILD_SETUP;
    TRY(fill_slots(place->slot, spec->in, spec->out, spec->err, spec->extra));
    pthread_sigmask(SIG_SETMASK, &all, &ours);
    int pidfd = -1, flags = CLONE_VM | CLONE_VFORK | SIGCHLD |
                            (has_unshare ? CLONE_FILES : 0) |
                            (spec->pidfd ? CLONE_PIDFD : 0);
    pid_t pid = clone(child_main, place->stack + STACK_SIZE, flags, &t, &pidfd);
    int error = pid < 0 ? errno : t.error;
    pthread_sigmask(SIG_SETMASK, &ours, NULL);
    fill_slots(place->slot, -1, -1, -1,
               -1); /* else a pipe of this child would stay open */
    if (spec->pidfd)
        *spec->pidfd = pidfd;
    if (pid >= 0 && t.step == CHILD_OK)
        return pid;
    if (pid >= 0)
        waitpid(pid, NULL, 0);
    if (pidfd >= 0)
        close(pidfd);
    *step = pid < 0 ? CHILD_CLONE : t.step;
    errno = error;
    return -1;
}

/* Does this kernel support CLOSE_RANGE_UNSHARE (5.9)? Tested with an empty range, and
 * without that flag, which is as old as the call: with it, this process would get a
 * descriptor table of its own, apart from other threads', such as ThreadSanitizer's. */
static bool unshare_works(void)
{
    return syscall(__NR_close_range, ~0U, ~0U, 0) == 0;
}

/* Reserve consecutive descriptors; returns the first one. */
static int reserve_slots(void)
{
    for (int first = STDERR_FILENO + 1, fd = -1;; first = fd) {
        int n = 0;
        while (n < SLOTS && (fd = fcntl(holder, F_DUPFD_CLOEXEC, first + n)) == first + n)
            n++;
        if (n == SLOTS)
            return first;
        while (n > 0)
            close(first + --n);
        if (fd < 0)
            return beyond_limit();
        close(fd);
    }
}

/* Descriptors above 2 that we inherited are not for our children. */
static void close_inherited_on_exec(void)
{
    if (syscall(__NR_close_range, STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC) == 0)
        return;
    for (int fd = STDERR_FILENO + 1; fd < 1024; fd++)
        fcntl(fd, F_SETFD, FD_CLOEXEC);
}

static int raise_file_limit(struct ddp_err *err)
{
    enum { LEAST = 64 }; /* a rank gets its PMI as descriptor 63 */
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return err_errno(err, "cannot read the limit of open files");
    if (files.rlim_max < LEAST)
        return err_set(err,
                       "only %d files may be open (ulimit -Hn); %d are needed, more "
                       "with many ranks",
                       (int)files.rlim_max, LEAST);
    struct rlimit most = {files.rlim_max, files.rlim_max};
    if (files.rlim_cur < files.rlim_max && setrlimit(RLIMIT_NOFILE, &most) < 0)
        files.rlim_cur = files.rlim_max;
    return 0;
}

/* With /proc of another PID namespace no descendant would be found, or a process that is
 * none would be taken for one, and killed. */
static int check_proc(struct ddp_err *err)
{
    char self[16] = "";
    if (readlink("/proc/self", self, sizeof self - 1) > 0 && atoi(self) == getpid())
        return 0;
    return err_set(err,
                   "/proc %s, so processes of the job could not be found and ended; "
                   "mount one ('mount -t proc proc /proc', 'unshare --mount-proc')",
                   self[0] ? "shows another PID namespace" : "is not mounted");
}

void child_place_destroy(struct child_place *p)
{
    if (!p)
        return;
    munmap(p->stack, STACK_SIZE);
    for (int i = 0; i < SLOTS; i++)
        close(p->slot + i);
    free(p);
}

static struct child_place *place_create(struct ddp_err *err)
{
    void *stack = mmap(NULL, STACK_SIZE, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) {
        err_errno(err, "no memory for the stack of children");
        return NULL;
    }
    int slot = reserve_slots();
    if (slot < 0) {
        err_errno(err, "no descriptors for children");
        munmap(stack, STACK_SIZE);
        return NULL;
    }
    struct child_place *p = xcalloc(1, sizeof *p);
    *p = (struct child_place){.stack = stack, .slot = slot};
    return p;
}

void child_signals_reset(void)
{
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGCHLD, SIG_DFL);
}

int child_init(struct ddp_err *err)
{
    if (mine)
        return 0;
    TRY(check_proc(err));
    TRY(raise_file_limit(err));
    close_inherited_on_exec();
    int low = open("/dev/null", O_RDWR | O_CLOEXEC);
    holder = low < 0 ? -1 : fcntl(low, F_DUPFD_CLOEXEC, STDERR_FILENO + 1 + SLOTS);
    if (low >= 0 && holder < 0)
        beyond_limit();
    if (holder < 0)
        err_errno(err, "cannot open '/dev/null'");
    if (low >= 0)
        close(low);
    if (holder < 0 || !(mine = place_create(err))) {
        child_finish();
        return -1;
    }
    has_unshare = unshare_works();
    return 0;
}

/* The kernel enlarges the descriptor table of a process with threads only after a grace
 * period of RCU, which takes milliseconds. Before the thread runs it takes none. A child
 * has streams, a pidfd, and connections to the store and to PMI. */
static void enlarge_table(int fd, unsigned nchildren)
{
    enum { OTHERS = 46, OF_A_CHILD = 16 };
    struct rlimit now;
    rlim_t n = OTHERS + (rlim_t)nchildren * OF_A_CHILD;
    if (getrlimit(RLIMIT_NOFILE, &now) == 0 && n >= now.rlim_cur)
        n = now.rlim_cur - 1;
    int last = fcntl(fd, F_DUPFD_CLOEXEC, (int)n);
    if (last >= 0)
        close(last);
}

struct child_place *child_place_create(unsigned nchildren, struct ddp_err *err)
{
    enlarge_table(holder, nchildren);
    struct child_place *p = place_create(err);
    if (p)
        p->changed = changed_signals();
    return p;
}

void child_finish(void)
{
    child_place_destroy(mine);
    mine = NULL;
    if (holder >= 0)
        close(holder);
    holder = -1;
}
