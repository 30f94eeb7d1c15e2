/* worker/group/shm.c - see shm.h
 *
 * The announcing store and the load of `asleep` after it must not be reordered, nor, on
 * the other side, the store to `asleep` and the load of what is waited for. A barrier
 * on the announcing side would delay each message until its cache line has arrived. So
 * the sleeper, which has time, issues one on all CPUs of the ranks (membarrier) between
 * its two; where a kernel has none, `asleep` is read by a read-modify-write, which is
 * ordered. Everything else is acquire and release.
 */
#include "worker/group/shm.h"

#include "common/err.h"
#include "common/scoped.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void *shm_arena_alloc(struct shm *s, size_t bytes, struct ddp_err *err)
{
    size_t room = (bytes + SHM_LINE - 1) / SHM_LINE * SHM_LINE;
    if (room < bytes || room > s->arena_bytes - s->arena_used) {
        err_set(
            err,
            "no room for %zu bytes in the arena: %zu of its %zu are in use; ask for a "
            "larger one on all ranks of the host (arena_bytes: %zu on %s, %zu on this)",
            bytes, s->arena_used, s->arena_bytes, s->arena_bytes,
            layout_who(s->layout, s->ranks[0]).text, s->arena_asked);
        return NULL;
    }
    char *p = s->arena + s->arena_used;
#ifdef MADV_POPULATE_WRITE
    /* allocate the pages now: a lack of memory would be SIGBUS later */
    size_t page = (size_t)sysconf(_SC_PAGESIZE), skip = (size_t)(p - s->base) % page;
    if (room > 0 && madvise(p - skip, room + skip, MADV_POPULATE_WRITE) < 0 &&
        errno != EINVAL) {
        err_errno(err, "cannot get %zu bytes of shared memory", bytes);
        return NULL;
    }
#endif
    s->arena_used += room;
    return p;
}

int64_t shm_where(const struct shm *s, const void *p, size_t bytes)
{
    const char *at = p;
    if (at < s->arena || at > s->arena + s->arena_used ||
        bytes > (size_t)(s->arena + s->arena_used - at))
        return -1;
    return at - s->base;
}

static void futex_wait(_Atomic uint32_t *word, uint32_t value, int ms)
{
    struct timespec ts = {ms / 1000, ms % 1000 * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, value, &ts, NULL, 0);
}

static uint32_t look_whether_asleep(const struct shm *s, _Atomic uint32_t *asleep)
{
    atomic_signal_fence(memory_order_seq_cst); /* the compiler keeps the order, too */
    return s->barriers ? atomic_load_explicit(asleep, memory_order_relaxed)
                       : atomic_fetch_or(asleep, 0);
}

void shm_wake(struct shm *s, int local)
{
    _Atomic uint32_t *asleep = &s->rank[local].asleep;
    uint32_t target = look_whether_asleep(s, asleep);
    if (target != 0 && (target == SHM_ANY || target == 1 + (uint32_t)s->me) &&
        atomic_compare_exchange_strong(asleep, &target, 0))
        syscall(SYS_futex, asleep, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static inline void wake_all(struct shm *s)
{
    for (int i = 0; i < s->n; i++) {
        if (i != s->me)
            shm_wake(s, i);
    }
}

/* Whatever they wait for. */
static void rouse_all(struct shm *s)
{
    for (int i = 0; i < s->n; i++) {
        _Atomic uint32_t *asleep = &s->rank[i].asleep;
        if (i != s->me && atomic_exchange(asleep, 0) != 0)
            syscall(SYS_futex, asleep, FUTEX_WAKE, 1, NULL, NULL, 0);
    }
}

void shm_post(struct shm *s, uint32_t what, uint64_t bytes, int64_t where,
              const void *small, size_t nsmall)
{
    uint32_t seq = ++s->seq;
    struct shm_rank *me = &s->rank[s->me];
    struct shm_post *post = &me->post[seq & 1];
    post->what = what;
    post->bytes = bytes;
    post->where = where;
    if (nsmall > SHM_INLINE)
        memcpy(me->eager[seq & 1], small, nsmall);
    else if (nsmall > 0)
        memcpy(post->data, small, nsmall);
    atomic_store_explicit(&post->seq, seq, memory_order_release);
    s->arrived = 0;
    s->moves++;
    wake_all(s);
}

void shm_step(struct shm *s)
{
    atomic_store_explicit(&s->rank[s->me].step, ++s->steps, memory_order_release);
    s->arrived = 0;
    s->moves++;
    wake_all(s);
}

bool shm_all_posted(struct shm *s)
{
    uint32_t seq = s->seq;
    for (; s->arrived < s->n; s->arrived++) {
        const struct shm_post *p = &s->rank[s->arrived].post[seq & 1];
        if (atomic_load_explicit(&p->seq, memory_order_acquire) != seq)
            return false;
    }
    return true;
}

bool shm_all_stepped(struct shm *s)
{
    for (; s->arrived < s->n; s->arrived++) {
        uint32_t step =
            atomic_load_explicit(&s->rank[s->arrived].step, memory_order_acquire);
        if ((int32_t)(step - s->steps) < 0)
            return false;
    }
    return true;
}

void shm_record_call(struct shm *s, const struct call *call)
{
    struct shm_call *w = &s->rank[s->me].words[call->number % SHM_WORDS];
    atomic_store(&w->number, 0);
    atomic_store_explicit(&w->what, call->what, memory_order_release);
    atomic_store_explicit(&w->bytes, call->bytes, memory_order_release);
    atomic_store_explicit(&w->number, call->number, memory_order_release);
}

uint64_t shm_recorded_call(const struct shm *s, int local, uint64_t number,
                           struct call *call)
{
    const struct shm_call *w = &s->rank[local].words[number % SHM_WORDS];
    uint64_t before = atomic_load_explicit(&w->number, memory_order_acquire);
    call->what = atomic_load_explicit(&w->what, memory_order_acquire);
    call->bytes = atomic_load_explicit(&w->bytes, memory_order_acquire);
    uint64_t after = atomic_load_explicit(&w->number, memory_order_relaxed);
    return before == after ? before : 0; /* it is being written: try again */
}

void shm_sleep(struct shm *s, unsigned local, int ms, bool (*ready)(void *arg), void *arg)
{
    _Atomic uint32_t *asleep = &s->rank[s->me].asleep;
    uint32_t target = local == SHM_ANY ? SHM_ANY : 1 + local;
    atomic_exchange(asleep, target);
    if (s->barriers)
        syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    if (!ready(arg))
        futex_wait(asleep, target, ms);
    atomic_exchange(asleep, 0);
}

bool shm_is_gone(const struct shm *s, int local, bool *left)
{
    const struct shm_rank *r = &s->rank[local];
    *left = atomic_load(&r->left) != 0;
    if (*left)
        return true;
    if (r->process == s->rank[s->me].process)
        return false; /* a thread of this process, which holds the lock itself */
    struct flock lock = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = local, .l_len = 1};
    return fcntl(s->fd, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

/* Written to this rank's own block and then published by one store: a rank that dies in
 * between has no effect, and another one can be first. */
void shm_fail(struct shm *s, int culprit, const char *why)
{
    uint32_t none = 0;
    struct shm_rank *me = &s->rank[s->me];
    if (atomic_load(&s->head->failed) != 0)
        return;
    me->culprit = culprit;
    strncpy(me->why, why, sizeof me->why - 1);
    if (!atomic_compare_exchange_strong(&s->head->failed, &none, 1 + (uint32_t)s->me))
        return; /* another rank was first */
    rouse_all(s);
}

bool shm_failed(const struct shm *s, int *culprit, struct ddp_err *err)
{
    uint32_t first = atomic_load_explicit(&s->head->failed, memory_order_acquire);
    if (first == 0)
        return false;
    *culprit = s->rank[first - 1].culprit;
    err_set(err, "%.500s", s->rank[first - 1].why);
    return true;
}

void shm_leave(struct shm *s, bool announced)
{
    if (!s)
        return;
    if (s->base) {
        if (announced) {
            atomic_store(&s->rank[s->me].left, 1);
            rouse_all(s);
        }
        munmap(s->base, s->bytes);
    }
    close_fd(&s->fd);
    free(s->in);
    free(s->out);
    free(s);
}
