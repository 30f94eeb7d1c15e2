/* What somebody writes against the installed library: ranks agree on a sum. */
#include <ddprun/group.h>
#include <stdio.h>

int main(void)
{
    struct ddp_err err;
    struct ddp_group *g = ddp_group_init(NULL, &err);
    if (!g)
        return fprintf(stderr, "%s\n", err.text), 1;
    int64_t sum = ddp_group_rank(g) + 1;
    if (ddp_all_reduce(g, &sum, 1, DDP_I64, DDP_SUM, &err) < 0)
        return fprintf(stderr, "%s\n", err.text), 1;
    printf("sum %d\n", (int)sum);
    ddp_group_destroy(g);
    return 0;
}
