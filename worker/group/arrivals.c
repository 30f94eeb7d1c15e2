/* worker/group/arrivals.c - for --stragglers: when this rank has entered its collectives
 *
 * DDPRUN_ARRIVALS in the environment switches it on: 40 ns per collective. Otherwise it
 * costs a test of a pointer. One file per process, which is mapped by the first group and
 * stays: threads of other groups may write to it. The agent removes it.
 */
#include "worker/group/group.h"

#include "common/arrivals.h"
#include "common/duration.h"
#include "common/fnv.h"
#include "common/mem.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct arrivals_file *_Atomic file;

static void map_file(void)
{
    const char *stem = getenv("DDPRUN_DIAGNOSE"), *on = getenv("DDPRUN_ARRIVALS");
    if (!stem || !on)
        return;
    char *path = xasprintf("%s.%d.arrivals", stem, (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct arrivals_file *f = MAP_FAILED;
    if (fd >= 0 && ftruncate(fd, sizeof *f) == 0)
        f = mmap(NULL, sizeof *f, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (f != MAP_FAILED) {
        f->room = ARRIVALS;
        f->version = ARRIVALS_VERSION;
        file = f;
    }
    if (fd >= 0)
        close(fd);
    free(path);
}

/* Groups of the same name may be made of different ranks. */
void arrivals_open(struct ddp_group *g)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, map_file);
    uint64_t id = fnv1a(FNV1A, g->name, strlen(g->name));
    size_t n = (size_t)g->layout.size * sizeof *g->layout.world_ranks;
    g->id = g->layout.world_ranks ? fnv1a(id, g->layout.world_ranks, n) : id;
}

void arrivals_note(const struct ddp_group *g)
{
    struct arrivals_file *f = atomic_load_explicit(&file, memory_order_relaxed);
    if (!f)
        return;
    uint64_t at = atomic_fetch_add_explicit(&f->next, 1, memory_order_relaxed);
    struct arrival_entry *e = &f->entry[at % ARRIVALS];
    atomic_store_explicit(&e->number, 0, memory_order_release);
    atomic_thread_fence(memory_order_release);
    e->group = g->id;
    e->at_ns = now_ns();
    atomic_store_explicit(&e->number, g->number, memory_order_release);
}
