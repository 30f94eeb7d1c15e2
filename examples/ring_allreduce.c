/* examples/ring_allreduce.c - an all-reduce built from messages, compared with ours
 *
 *     ddprun -np 4 build/examples/ring_allreduce
 *
 * The vector is split into one slice per rank. Each slice is sent once around the
 * ring and added to at every rank (reduce-scatter), then the finished slices are sent
 * around once more (all-gather). With isend both neighbours send at the same time.
 */
#include "example.h"

enum { COUNT = 1 << 20 };

static void ring_allreduce(struct ddp_group *g, float *x)
{
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    int next = (rank + 1) % size, prev = (rank + size - 1) % size;
    float *come = malloc((COUNT / (size_t)size + 1) * sizeof *come);
    if (!come) {
        fprintf(stderr, "no memory for a slice\n");
        exit(1);
    }
    for (int step = 0; step < 2 * (size - 1); step++) {
        int out = (rank - step + 2 * size) % size, in = (out + size - 1) % size;
        size_t out_at = (size_t)out * COUNT / (size_t)size;
        size_t out_end = ((size_t)out + 1) * COUNT / (size_t)size;
        size_t in_at = (size_t)in * COUNT / (size_t)size;
        size_t in_n = ((size_t)in + 1) * COUNT / (size_t)size - in_at;
        struct ddp_request *sent =
            ddp_isend(g, x + out_at, (out_end - out_at) * sizeof *x, next, step, &err);
        check(sent != NULL);
        check(ddp_recv(g, come, in_n * sizeof *x, prev, step, &err) == 0);
        check(ddp_wait(sent, &err) == 0);
        for (size_t i = 0; i < in_n; i++)
            x[in_at + i] = step < size - 1 ? x[in_at + i] + come[i] : come[i];
    }
    free(come);
}

int main(void)
{
    struct ddp_group *g = ddp_group_init(NULL, &err);
    check(g != NULL);
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    float *by_hand = malloc(COUNT * sizeof *by_hand);
    float *ours = ddp_arena_alloc(g, COUNT * sizeof *ours, &err);
    check(by_hand && ours);
    for (int i = 0; i < COUNT; i++)
        by_hand[i] = ours[i] = (float)(rank + i % 10);
    ring_allreduce(g, by_hand);
    check(ddp_all_reduce(g, ours, COUNT, DDP_F32, DDP_SUM, &err) == 0);
    for (int i = 0; i < COUNT; i++) {
        if (by_hand[i] != ours[i]) {
            fprintf(stderr, "element %d: %g by hand, %g\n", i, (double)by_hand[i],
                    (double)ours[i]);
            return 1;
        }
    }
    if (rank == 0)
        printf("%d ranks (%s) agree on %d sums; the last is %g\n", size,
               ddp_group_backend(g), COUNT, (double)ours[COUNT - 1]);
    free(by_hand);
    ddp_group_destroy(g);
    return 0;
}
