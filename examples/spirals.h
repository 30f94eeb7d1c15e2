/* examples/spirals.h - data and first weights of network.c and network_cuda.cu: points of
 * two spirals, and a network of two layers that tells which one a point is of
 */
#ifndef EXAMPLES_SPIRALS_H
#define EXAMPLES_SPIRALS_H

#include <math.h>
#include <stddef.h>

enum { POINTS = 500, BATCH = 64, HIDDEN = 48 };
enum { IN, IN_BIAS, OUT, OUT_BIAS, NPARAMS };
static const char *const names[] = {"in.weight", "in.bias", "out.weight", "out.bias"};
static const size_t counts[] = {2 * HIDDEN, HIDDEN, HIDDEN, 1};

/* The same on every rank and machine: not the C library's generator. */
static float draw(void)
{
    static unsigned seed = 42;
    seed = seed * 1664525u + 1013904223u;
    return (float)(seed >> 8) / (1 << 24);
}

/* Points 0, 2, 4, ... are of one spiral, the others of the other. */
static void make_points(float points[POINTS][2])
{
    for (int i = 0; i < POINTS; i++) {
        float turn = 0.3f + 6 * draw(), angle = turn + (i % 2 ? 3.14159f : 0);
        points[i][0] = turn / 6 * cosf(angle) + 0.03f * draw();
        points[i][1] = turn / 6 * sinf(angle) + 0.03f * draw();
    }
}

static void make_weights(int param, float *weights)
{
    for (size_t k = 0; k < counts[param]; k++)
        weights[k] = (draw() - 0.5f) * (param == IN ? 4 : 1);
}

#endif
