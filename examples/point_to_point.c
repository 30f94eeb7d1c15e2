/* examples/point_to_point.c - a token is passed around a ring
 *
 *     ddprun -np 4 build/examples/point_to_point
 */
#include "example.h"

int main(void)
{
    struct ddp_group *g = ddp_group_init(NULL, &err);
    check(g != NULL);
    int rank = ddp_group_rank(g), size = ddp_group_size(g), token = 1;
    if (rank > 0) {
        check(ddp_recv(g, &token, sizeof token, rank - 1, 0, &err) == 0);
        token++;
    }
    check(ddp_send(g, &token, sizeof token, (rank + 1) % size, 0, &err) == 0);
    if (rank == 0) {
        check(ddp_recv(g, &token, sizeof token, size - 1, 0, &err) == 0);
        printf("the token has been with %d of %d ranks\n", token, size);
    }
    ddp_group_destroy(g);
    return 0;
}
