/* examples/point_to_point.c - a token goes around
 *
 *     ddprun -np 4 build/examples/point_to_point
 */
#include "include/ddprun/group.h"

#include <stdio.h>

int main(void)
{
    struct ddp_err err;
    int token = 1, rc = 0;
    struct ddp_group *g = ddp_group_init(NULL, &err);
    if (!g) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    if (rank > 0) {
        rc = ddp_recv(g, &token, sizeof token, rank - 1, 0, &err);
        token++;
    }
    if (rc == 0)
        rc = ddp_send(g, &token, sizeof token, (rank + 1) % size, 0, &err);
    if (rc == 0 && rank == 0) {
        rc = ddp_recv(g, &token, sizeof token, size - 1, 0, &err);
        if (rc == 0)
            printf("the token has been with %d of %d ranks\n", token, size);
    }
    if (rc < 0)
        fprintf(stderr, "rank %d: %s\n", rank, err.text);
    ddp_group_destroy(g);
    return rc < 0;
}
