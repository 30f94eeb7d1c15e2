/* worker/kernels/vector_conv_impl.h - convolution: what its files share
 *
 * Most 3x3 convolutions use Winograd's method (vector_winograd.c), the others the direct
 * one (vector_direct.c): other kernels, strides, first layers. Both are products of
 * matrices (vector_product.c): of a matrix v of inputs, which is made for some columns at
 * a time so that it stays in the second-level cache, and packed weights.
 *
 * Layout. Between layers images are [channels/BLOCK][H][W][BLOCK]: BLOCK channels of a
 * pixel are adjacent, missing channels are zero. `step` is the distance in words from
 * a pixel to the next: WORDS in this layout, 1 in the first layer's NCHW floats, whose
 * channels count as blocks of one. With bf16, a word of a direct convolution holds two
 * channels; in dw it holds one channel of two pixels. A first layer computes in fp32.
 *
 * Large images go through all passes one by one, so that intermediate results (gradients
 * before pooling) stay in the cache. Small ones have few pixels for many weights, so a
 * group of images goes through each pass together.
 *
 * Threads share out the images; each has its own dw, and these are added in the
 * threads' order.
 */
#ifndef WORKER_KERNELS_VECTOR_CONV_IMPL_H
#define WORKER_KERNELS_VECTOR_CONV_IMPL_H

#include "worker/kernels/scratch.h"
#include "worker/kernels/vector_elem.h"

/* A set of images in one of the layouts. */
struct maps {
    int blocks, step, H, W;
};

struct conv_plan {
    struct conv_shape s; /* stride is 1 or more here */
    const struct conv_method *method;
    int winograd, squares; /* vector_winograd.c: m, or 0; how many at a time */
    int rows;              /* vector_direct.c: rows of outputs at a time */
    int group;             /* images that go through a pass together */
    struct maps in;        /* x */
    struct maps full, out; /* y before and after pooling */
    size_t taps;           /* numbers in the packed weights: taps, or points */
    int threads;
    /* Packed: [K/BLOCK][in.blocks][R*R][BLOCK][BLOCK]; a first layer's
     * [K/BLOCK][C*R*R][BLOCK] in float. For dx k and c are exchanged:
     * [in.blocks][K/BLOCK]... With Winograd's method both are u:
     * [K/BLOCK][points][channels][BLOCK], [in.blocks][points][features][BLOCK]. */
    elem *w, *turned;
    float *bias;
    uint8_t *arg;             /* as out, per image: which of the four was the maximum */
    struct own *own;          /* per thread */
    struct scratches *memory; /* borrowed: all of this is there */
};

struct own {       /* a thread's buffers; images are those of a group */
    float *pooled; /* images of y, or of its gradient, in our layout */
    float *planes; /* one image of y or its gradient in NCHW, fp32 */
    float *floats; /* images of dx, or one of y's gradient, in our layout but fp32 */
    float *full;   /* an image of y, or of its gradient, before pooling */
    float *v, *M;  /* matrices of inputs, and of outputs or gradients */
    float *pack;   /* weights of a pair of blocks while they are packed */
    float *dw, *dbias;
    bool begun; /* dw has contributions of this batch */
};

static inline size_t maps_words(struct maps m)
{
    return (size_t)m.blocks * (size_t)m.H * (size_t)m.W * (size_t)m.step;
}

/* What is done to the sums of a convolution before they are stored. */
enum finish {
    FINISH_RELU = 1,
    FINISH_MASK = 2, /* set to 0 where the mask is not positive */
    FINISH_ADD = 4   /* add to the contents of y */
};

struct pixels { /* where and how pixels of one block of channels are stored */
    unsigned finish;
    const float *mask; /* x, whose sign decides, for FINISH_MASK; same layout as y */
    float *y;
};

/* For dx, whose buffer may have other gradients in it. */
static inline unsigned back_finish(const struct conv_plan *p)
{
    return p->s.adds ? FINISH_ADD : p->s.bare ? 0 : FINISH_MASK;
}

ALWAYS void conv_pixel(const struct pixels *a, size_t at, struct two v)
{
    if (a->finish & FINISH_ADD)
        v = plus(pixel(a->y + at), v);
    if (a->finish & FINISH_RELU)
        v = two_positive(v);
    if (a->finish & FINISH_MASK)
        v = two_where_positive(pixel(a->mask + at), v);
    store_pixel(a->y + at, v);
}

/* Pixels as floats: in `floats`, or with fp32 where they are. */
static inline const float *in_floats(const float *words, size_t pixels, float *floats)
{
#if BF16
    for (size_t i = 0; i < pixels; i++)
        put(floats + i * BLOCK, pixel(words + i * WORDS));
    return floats;
#else
    return words;
#endif
}

/* How images of a group are convolved. */
struct conv_method {
    /* Allocates a thread's buffers. */
    void (*room)(struct conv_plan *p, struct own *own);
    /* For n images in a thread: y; the gradient of the packed weights, added to own->dw;
     * dx. y and dy are those before pooling. */
    void (*forward)(const struct conv_plan *p, struct own *own, int n, const float *x,
                    float *y);
    void (*taps)(const struct conv_plan *p, struct own *own, int n, const float *x,
                 const float *dy);
    void (*back)(const struct conv_plan *p, struct own *own, int n, const float *x,
                 const float *dy, float *dx);
};
#define conv_direct   NAMED(conv_direct)
#define conv_winograd NAMED(conv_winograd)
extern const struct conv_method conv_direct, conv_winograd;

/* M[outputs][columns][BLOCK] = sum over blocks and i of v[block][i][column] times
 * u[output][block][i][BLOCK], at these distances in words. Unlike gemm()
 * (vector_gemm.c) this packs nothing: both operands are read where they are. */
struct product {
    bool floats; /* words are floats, with bf16, too */
    bool more;   /* added to M */
    int blocks, count, columns, outputs;
    size_t v_block, u_block, u_output, M_output;
    int v_row, v_column; /* one of them is 1; of words v_column is 1 or WORDS */
};
#define conv_multiply NAMED(conv_multiply)
void conv_multiply(const struct product *p, const float *v, const float *u, float *M);

#define winograd_plan   NAMED(winograd_plan)
#define winograd_pack   NAMED(winograd_pack)
#define winograd_unpack NAMED(winograd_unpack)
/* Chooses p->winograd: 4, 2, or 0 if a direct convolution is faster. */
void winograd_plan(struct conv_plan *p);
/* Kernels of `count` channels for a block of features, rows[count][9][BLOCK], to
 * u[points][count][BLOCK], whose points are `point` floats apart; and their gradient from
 * that of u. */
void winograd_pack(int m, int count, const float *rows, float *u, size_t point);
void winograd_unpack(int m, int count, const float *du, size_t point, float *rows);

#define conv_pack   NAMED(conv_pack)
#define conv_turn   NAMED(conv_turn)
#define conv_unpack NAMED(conv_unpack)
/* For pool_each() over the blocks of features: packs w to p->w and p->turned; adds all
 * threads' dw and unpacks the sum to dw. */
struct conv_weights {
    const struct conv_plan *p;
    const float *w;
    float *dw;
};
void conv_pack(int kb, int part, void *weights);
void conv_turn(int kb, int part, void *weights);
void conv_unpack(int kb, int part, void *weights);

#endif
