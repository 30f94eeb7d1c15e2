/* bench/collectives/floor.c - the least that two ranks must do: both vectors lie in one
 * mapping, each rank adds one half of them into both, between two spinning barriers. No
 * copies, no waiting in the kernel, no checks, no failures. */
#include "bench/collectives/contest.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    _Alignas(64) _Atomic unsigned at[2][16];
} * flags;
static float *vectors[2];
static int me;
static unsigned turn;

static void barrier(void)
{
    turn++;
    atomic_store_explicit(&flags->at[me][0], turn, memory_order_release);
    while (atomic_load_explicit(&flags->at[!me][0], memory_order_acquire) < turn)
        ;
}

#if defined(__x86_64__) && !defined(__clang__)
__attribute__((target_clones("default", "avx2", "avx512f")))
#endif
static void
add(float *restrict a, float *restrict b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        a[i] = b[i] = a[i] + b[i];
}

static void all_reduce(float *data, size_t count)
{
    size_t half = count / 2 / 16 * 16, from = me ? half : 0, to = me ? count : half;
    barrier();
    add(vectors[0] + from, vectors[1] + from, to - from);
    barrier();
}

int main(int argc, char **argv)
{
    char *all = mmap(NULL, 2 * CONTEST_ROOM + 4096, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED)
        return 1;
    flags = (void *)all;
    vectors[0] = (void *)(all + 4096);
    vectors[1] = (void *)(all + 4096 + CONTEST_ROOM);
    pid_t other = fork();
    me = other == 0;
    contest_pin(me);
    struct contestant c = {.rank = me,
                           .size = 2,
                           .data = vectors[me],
                           .all_reduce = all_reduce,
                           .barrier = barrier};
    contest_run(&c, argc - 1, argv + 1);
    int status = 0;
    if (!me)
        wait(&status);
    return status != 0;
}
