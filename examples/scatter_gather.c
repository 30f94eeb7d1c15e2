/* examples/scatter_gather.c - rank 0 distributes work and collects the results
 *
 *     ddprun -np 4 build/examples/scatter_gather
 *
 * Ten numbers are distributed evenly (scatterv), squared on each rank,
 * collected (gatherv), and their sum is reduced to rank 0.
 */
#include "example.h"

enum { COUNT = 10 };

int main(void)
{
    struct ddp_group *g = ddp_group_init(NULL, &err);
    check(g != NULL);
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    size_t *counts = malloc((size_t)size * sizeof *counts);
    check(counts != NULL);
    for (int r = 0; r < size; r++)
        counts[r] = COUNT / (size_t)size + ((size_t)r < COUNT % (size_t)size);
    size_t mine = counts[rank];

    double all[COUNT], part[COUNT], sum = 0, total = 0;
    for (int i = 0; i < COUNT; i++)
        all[i] = i + 1;
    check(ddp_scatterv(g, all, counts, part, mine, DDP_F64, 0, &err) == 0);
    for (size_t i = 0; i < mine; i++) {
        part[i] *= part[i];
        sum += part[i];
    }
    check(ddp_gatherv(g, part, mine, all, counts, DDP_F64, 0, &err) == 0);
    check(ddp_reduce(g, &sum, &total, 1, DDP_F64, DDP_SUM, 0, &err) == 0);
    if (rank == 0) {
        printf("squares:");
        for (int i = 0; i < COUNT; i++)
            printf(" %g", all[i]);
        printf("\ntheir sum: %g\n", total);
    }
    free(counts);
    ddp_group_destroy(g);
    return 0;
}
