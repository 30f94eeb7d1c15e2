/* worker/kernels/vector_conv.h - direct convolution: what its two directions share
 *
 * Layout. Images between layers lie as [channels/BLOCK][H][W][BLOCK]: BLOCK channels of a
 * pixel side by side, missing channels zero. `step` is how many words a pixel is from the
 * next: WORDS there, 1 in the first layer's NCHW floats, whose channels then count as
 * blocks of one. In both, what a kernel row of R pixels covers is R*step words in a row,
 * and so each pass is a loop over those, whatever R is:
 *
 *   forward   y[oh,ow,:] += x[oh+r, ow*step + i] * w[r][i][:]        T pixels at a time
 *   dx        the same over dy, with zeros on its sides, and with w turned around; with a
 *             stride, each of its stride^2 phases meets taps of its own
 *   dw        dw[r][i][:] += x[oh+r, ow*step + i] * dy[oh,ow,:]      T taps i at a time
 *
 * With bf16, a word of forward and dx holds two channels. Those of dw hold a channel of
 * two pixels, paired for each image on its way. A first layer computes in fp32.
 *
 * Large images go through all passes one by one, so that what stands between them (the
 * rows before pooling, the unpooled gradient) never leaves the cache. Small ones have few
 * pixels for many weights, so a group of them goes through each pass together: weights of
 * a block or two of inputs stay in the first cache until all have met them, and the sums
 * wait in fp32 for the next. Where a row is too short to fill the registers, a tile is
 * the same row of several images.
 *
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
    int stride, P;         /* P: columns of zeros before each row of dy for dx */
    int group;             /* images that go through a pass together */
    struct maps x, in;     /* x, and x with its padding */
    struct maps full, out; /* y before and after pooling */
    struct maps spread;    /* dy for dx, with columns of zeros */
    size_t taps;           /* of packed weights, in numbers */
    int threads;
    elem *w;      /* packed: [K/BLOCK][in.blocks][R][R*step][BLOCK], a first
                     layer's float */
    elem *turned; /* for dx: [in.blocks][K/BLOCK], then phase after phase */
    float *bias;
    uint8_t *arg;    /* as out, per image: which of the four was the maximum */
    struct own *own; /* per thread */
};

struct own {       /* images: those of a group, one after another */
    float *x;      /* images of x, padded */
    float *rows;   /* two rows before pooling, fp32 */
    float *pooled; /* images of y, or of its gradient, in our layout */
    float *planes; /* one image of y or its gradient in NCHW, fp32 */
    float *dy;     /* images of the gradient before pooling, spread */
    float *pairs;  /* bf16: x in pairs of pixels, [in.blocks][in.H][in.W][BLOCK] */
    float *dpairs; /* bf16: dy in pairs, or, in a first layer, in floats */
    float *sum;    /* y or dx of a block of channels, fp32, while other blocks go by */
    float *pack;   /* weights of a pair of blocks, on their way */
    float *dw, *dbias;
    bool begun; /* dw has something of this batch */
};

/* Pixels h of dx with (h + pad) % stride == a, in rows or in columns: they meet the taps
 * a, a + stride, ... and lie `stride` apart. */
struct phase {
    int taps;   /* how many, */
    int before; /* and how many those of the phases before have */
    int first;  /* the first pixel of dx, */
    int count;  /* and how many there are */
    int at; /* the row of dy under the first pixel's first turned tap; the next pixel's
               is one further on */
};

static inline struct phase phase_of(const struct conv_plan *p, int a, int size)
{
    int s = p->stride, taps = a < p->s.R ? (p->s.R - a + s - 1) / s : 0, before = 0;
    for (int b = 0; b < a; b++)
        before += b < p->s.R ? (p->s.R - b + s - 1) / s : 0;
    int first = (a - p->s.pad % s + s) % s;
    int count = first < size ? (size - first + s - 1) / s : 0;
    return (struct phase){taps, before, first, count, (first + p->s.pad) / s - taps + 1};
}

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
    int first, last;    /* rows of the kernel that fall on the image: [first, last) */
    int Q;              /* pixels of a kernel row */
    int W;              /* pixels of the row */
    int images;         /* the same row of so many */
    int x_step, y_step; /* words from one pixel's input, or output, to the next one's */
    const float *x;     /* the input row under kernel row `first`, first block */
    const float *w;     /* [in.blocks], w_block words apart: [rows][Q*step][BLOCK] */
    const float *start; /* what the sums begin with: the same for each pixel, or not */
    int start_step;     /* 0, or floats from a pixel to the next */
    size_t w_block, x_image, y_image, start_image; /* words from an image to the next */
    unsigned finish;
    const float *mask; /* the row of x whose sign decides, for FINISH_MASK; lies as y */
    float *y;
};

#define conv_row    NAMED(conv_row)
#define conv_input  NAMED(conv_input)
#define conv_pack   NAMED(conv_pack)
#define conv_turn   NAMED(conv_turn)
#define conv_unpack NAMED(conv_unpack)
void conv_row(const struct row *a);
/* n images x with their padding. */
const float *conv_input(const struct conv_plan *p, struct own *own, int n,
                        const float *x);
/* w to p->w, w to p->turned, and the sum of all threads' dw to w; for pool_run(). */
struct conv_weights {
    const struct conv_plan *p;
    const float *w;
    float *dw;
};
void conv_pack(int part, int parts, void *weights);
void conv_turn(int part, int parts, void *weights);
void conv_unpack(int part, int parts, void *weights);

#endif
