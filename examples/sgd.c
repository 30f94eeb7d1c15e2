/* examples/sgd.c - data-parallel training in sixty lines: each rank has its share of the
 * data, gradients are averaged, and all ranks keep the same model
 *
 *     ddprun -np 4 build/examples/sgd
 *
 * The model is y = w x + b, the data are points near y = 3 x - 2. Every rank processes
 * its share of a batch; the average of the shares' gradients is the batch's, so the
 * numbers are the same for 1, 2 and 4 ranks.
 */
#include "example.h"

enum { POINTS = 64, BATCH = 16, EPOCHS = 20 };

struct point {
    double x, y;
};

/* The same on every rank and machine: not the C library's generator. */
static void make_points(struct point *p)
{
    unsigned seed = 42;
    for (int i = 0; i < POINTS; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i].x = (double)(seed >> 8) / (1 << 24) * 2 - 1;
        seed = seed * 1664525u + 1013904223u;
        p[i].y = 3 * p[i].x - 2 + ((double)(seed >> 8) / (1 << 24) - 0.5) * 0.1;
    }
}

int main(void)
{
    struct point points[POINTS];
    struct ddp_group *g = ddp_group_init(NULL, &err);
    check(g != NULL);
    int rank = ddp_group_rank(g), size = ddp_group_size(g), share = BATCH / size;
    if (BATCH % size != 0) {
        fprintf(stderr, "a batch of %d cannot be shared by %d ranks\n", BATCH, size);
        return 2;
    }
    make_points(points);
    double w = 0, b = 0;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        double total = 0;
        for (int at = 0; at < POINTS; at += BATCH) {
            double sums[3] = {0}; /* gradients of w and b, and the loss */
            for (int i = at + rank * share; i < at + (rank + 1) * share; i++) {
                double off = w * points[i].x + b - points[i].y;
                sums[0] += 2 * off * points[i].x / share;
                sums[1] += 2 * off / share;
                sums[2] += off * off / share;
            }
            check(ddp_all_reduce(g, sums, 3, DDP_F64, DDP_AVG, &err) == 0);
            w -= 0.3 * sums[0];
            b -= 0.3 * sums[1];
            total += sums[2] * BATCH / POINTS;
        }
        if (rank == 0 && epoch % 5 == 4)
            printf("epoch %d: loss %.6f, w %.6f, b %.6f\n", epoch + 1, total, w, b);
    }
    ddp_group_destroy(g);
    return 0;
}
