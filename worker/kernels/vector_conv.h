/* worker/kernels/vector_conv.h - direct convolution: what its two directions share
 *
 * Layout. Images between layers lie as [channels/BLOCK][H][W][BLOCK]: BLOCK channels of a
 * pixel side by side, missing channels zero. `step` is how many words a pixel is from the
 * next: WORDS there, 1 in the first layer's NCHW floats, whose channels then count as
 * blocks of one. In both, what a kernel row of R pixels covers is R*step words in a row,
 * and so each pass is a loop over those, whatever R is:
 *
 *   forward   y[oh,ow,:] += x[oh+r, ow*step + i] * w[r][i][:]        T pixels at a time
 *   dx        the same over dy, padded with zeros (and with stride, spread out between
 *             them), with w turned around
 *   dw        dw[r][i][:] += x[oh+r, ow*step + i] * dy[oh,ow,:]      T taps i at a time
 *
 * With bf16, a word of forward and dx holds two channels. Those of dw hold a channel of
 * two pixels, paired for each image on its way. A first layer computes in fp32.
 *
 * An image goes through all its passes before the next one comes, so that what stands
 * between them (the rows before pooling, the unpooled gradient) never leaves the cache.
 * Threads share out the images; each has its own dw, added up in their order.
 */
#ifndef WORKER_KERNELS_VECTOR_CONV_H
#define WORKER_KERNELS_VECTOR_CONV_H

#include "worker/kernels/vector_elem.h"

/* A set of images in one of the layouts. */
struct maps {
    int blocks, step, H, W;
};

struct conv_plan {
    struct conv_shape s;
    int stride, P;         /* P: columns of zeros on each side of dy for dx */
    struct maps x, in;     /* x, and x with its padding */
    struct maps full, out; /* y before and after pooling */
    struct maps spread;    /* dy for dx: padded, and with stride spread out */
    size_t taps;           /* of packed weights, in numbers */
    int threads;
    elem *w,
        *turned; /* packed: [K/BLOCK][in.blocks][R][R*step][BLOCK], a first w float */
    float *bias;
    uint8_t *arg;    /* as out, per image: which of the four was the maximum */
    struct own *own; /* per thread */
};

struct own {
    float *x;      /* one image of x, padded */
    float *rows;   /* two rows before pooling, fp32 */
    float *pooled; /* one image of y, or of its gradient, in our layout */
    float *planes; /* one image of y or its gradient in NCHW, fp32 */
    float *dy;     /* one image of the gradient before pooling, spread */
    float *pairs;  /* bf16: x in pairs of pixels, [in.blocks][in.H][in.W][BLOCK] */
    float *dpairs; /* bf16: dy in pairs, or, in a first layer, in floats */
    float *sum;    /* dx of a block of channels, fp32, while blocks of dy go by */
    float *dw, *dbias;
};

static inline size_t maps_words(struct maps m)
{
    return (size_t)m.blocks * (size_t)m.H * (size_t)m.W * (size_t)m.step;
}

/* What the sums of a convolution become on their way out. */
enum finish {
    FINISH_FLOATS = 1, /* y is fp32; else in the engine's type */
    FINISH_RELU = 2,
    FINISH_MASK = 4, /* 0 where the mask is not positive */
    FINISH_ADD = 8   /* to what y holds */
};

struct row { /* a row of outputs of one block of channels, from some blocks of inputs */
    struct maps in;
    int R, first, last; /* rows of the kernel that fall on the image: [first, last) */
    int W;              /* pixels of the row */
    int x_step;         /* words from the input of a pixel to that of the next */
    const float *x;     /* the input row under kernel row `first`, first block */
    const float *w;     /* [in.blocks][R][R*step][BLOCK] */
    const float *start; /* what the sums begin with: the same for each pixel, or not */
    int start_step;     /* 0, or BLOCK */
    unsigned finish;
    const float *mask; /* the row of x whose sign decides, for FINISH_MASK */
    float *y;
};

#define conv_row   NAMED(conv_row)
#define conv_input NAMED(conv_input)
void conv_row(const struct row *a);
/* Image x with its padding. */
const float *conv_input(const struct conv_plan *p, struct own *own, const float *x);

#endif
