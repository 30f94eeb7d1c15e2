/* examples/groups.c - collectives among some of the ranks
 *
 *     ddprun -np 4 build/examples/groups
 *
 * Even and odd ranks form two groups that reduce at the same time, independently.
 */
#include "example.h"

int main(void)
{
    struct ddp_group *all = ddp_group_init(NULL, &err), *half;
    check(all != NULL);
    int rank = ddp_group_rank(all), size = ddp_group_size(all);
    check(ddp_group_split(all, rank % 2, rank, &half, &err) == 0);

    int sums[2] = {rank, 1}; /* sum of the ranks, and their number */
    check(ddp_all_reduce(half, sums, 2, DDP_I32, DDP_SUM, &err) == 0);

    /* rank 0 of all prints the result of each rank */
    int *table = malloc((size_t)size * sizeof sums);
    check(table && ddp_gather(all, sums, table, 2, DDP_I32, 0, &err) == 0);
    for (int r = 0; rank == 0 && r < size; r++)
        printf("rank %d: the %s ranks are %d and add up to %d\n", r,
               r % 2 ? "odd" : "even", table[2 * r + 1], table[2 * r]);
    free(table);
    ddp_group_destroy(half);
    ddp_group_destroy(all);
    return 0;
}
