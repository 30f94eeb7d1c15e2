/* worker/kernels/vector_conv_impl.h - convolution: what its files share
 *
 * Most 3x3 convolutions use Winograd's method, see vector_winograd.h; what follows is
 * about direct convolution.
 *
 * Layout. Between layers images are [channels/BLOCK][H][W][BLOCK]: BLOCK channels of a
 * pixel are adjacent, missing channels are zero. `step` is the distance in words from
 * a pixel to the next: WORDS in this layout, 1 in the first layer's NCHW floats, whose
 * channels count as blocks of one. In both, the pixels under a kernel row of R taps
 * are R*step adjacent words, so each pass is a loop over these, whatever R is:
 *
 *   forward   y[oh,ow,:] += x[oh+r, ow*step + i] * w[r][i][:]     T pixels at a time
 *   dx        the same over dy, padded with zeros, and with w rotated by 180 degrees;
 *             with a stride, each of the stride^2 phases uses its own taps
 *   dw        dw[r][i][:] += x[oh+r, ow*step + i] * dy[oh,ow,:]   T taps i at a time
 *
 * With bf16, a word of forward and dx holds two channels. In dw a word holds one
 * channel of two pixels, which are paired for each image in advance. A first layer
 * computes in fp32.
 *
 * Large images go through all passes one by one, so that intermediate results (rows
 * before pooling, gradients before pooling) stay in the cache. Small ones have few
 * pixels for many weights, so a group of images goes through each pass together: the
 * weights of a few input blocks stay in the first-level cache until all images have
 * used them, and partial sums are kept in fp32 until the next blocks. Where a row is
 * too short to fill the registers, a tile is the same row of several images.
 *
 * Threads share out the images; each has its own dw, and these are added in the
 * threads' order.
 */
#ifndef WORKER_KERNELS_VECTOR_CONV_IMPL_H
#define WORKER_KERNELS_VECTOR_CONV_IMPL_H

#include "worker/kernels/scratch.h"
#include "worker/kernels/vector_elem.h"

enum { WEIGHTS_AT_ONCE = 4608 }; /* words of a pass over a group: they stay in L1 */

/* A set of images in one of the layouts. */
struct maps {
    int blocks, step, H, W;
};

struct conv_plan {
    struct conv_shape s;
    int stride, P;         /* P: columns of zeros before each row of dy for dx */
    int winograd, squares; /* vector_winograd.h: m, or 0; how many at a time */
    int group;             /* images that go through a pass together */
    struct maps x, in;     /* x, and x with its padding */
    struct maps full, out; /* y before and after pooling */
    struct maps spread;    /* dy for dx, with columns of zeros */
    size_t taps;           /* numbers in the packed weights: taps, or points */
    int threads;
    elem *w;      /* packed: [K/BLOCK][in.blocks][R][R*step][BLOCK], a first
                     layer's float */
    elem *turned; /* rotated, for dx: [in.blocks][K/BLOCK], phase after phase. With
                     Winograd's method both are u: [K/BLOCK][points][channels][BLOCK], and
                     [in.blocks][points][features][BLOCK] */
    float *bias;
    uint8_t *arg;    /* as out, per image: which of the four was the maximum */
    struct own *own; /* per thread */
    struct scratches memory;
};

struct own {       /* a thread's buffers; images are those of a group */
    float *x;      /* images of x, padded */
    float *rows;   /* two rows before pooling, fp32 */
    float *pooled; /* images of y, or of its gradient, in our layout */
    float *planes; /* one image of y or its gradient in NCHW, fp32 */
    float *dy;     /* images of the gradient before pooling, rows padded with zeros */
    float *pairs;  /* bf16: x in pairs of pixels, [in.blocks][in.H][in.W][BLOCK] */
    float *dpairs; /* bf16: dy in pairs, or, in a first layer, in floats */
    float *sum;    /* partial sums of y or dx of a block of channels, fp32, between passes
                      over other blocks */
    float *v, *M;  /* vector_winograd.h: squares of inputs, and of outputs or gradients */
    float *pack;   /* weights of a pair of blocks while they are packed */
    float *dw, *dbias;
    bool begun; /* dw has contributions of this batch */
};

/* A phase of a strided dx: the pixels h with (h + pad) % stride == a, in rows or in
 * columns. They use the taps a, a + stride, ... and are `stride` apart. */
struct phase {
    int taps;   /* taps of this phase */
    int before; /* taps of the phases before */
    int first;  /* first pixel of dx */
    int count;  /* number of pixels */
    int at; /* the row of dy under the first pixel's first rotated tap; the next pixel's
               is the next row */
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

/* Blocks of inputs of a pass over a group, for `taps` taps of each. Sums are loaded and
 * stored once for all of them. */
static inline int blocks_at_once(int taps)
{
    int many = WEIGHTS_AT_ONCE / (BLOCK * BLOCK) / (taps > 0 ? taps : 1);
    return PER_WORD * (many > 0 ? many : 1);
}

static inline size_t maps_words(struct maps m)
{
    return (size_t)m.blocks * (size_t)m.H * (size_t)m.W * (size_t)m.step;
}

/* Where the pixels of images are; of their blocks' first channels, in words. */
struct view {
    const float *at;
    size_t row, block, image; /* from one to the next */
    int blocks, H, W;
};

static inline struct view view_of(struct maps m, const float *at)
{
    size_t row = (size_t)(m.W * m.step), block = (size_t)m.H * row;
    return (struct view){at, row, block, (size_t)m.blocks * block, m.blocks, m.H, m.W};
}

/* What is done to the sums of a convolution before they are stored. */
enum finish {
    FINISH_FLOATS = 1, /* y is fp32; else in the engine's type */
    FINISH_RELU = 2,
    FINISH_MASK = 4, /* set to 0 where the mask is not positive */
    FINISH_ADD = 8   /* add to the contents of y */
};

struct row { /* a row of outputs of one block of channels, from some blocks of inputs */
    struct maps in;
    int first, last;    /* rows of the kernel that are inside the image: [first, last) */
    int Q;              /* pixels of a kernel row */
    int W;              /* pixels of the row */
    int images;         /* number of images whose same row is computed */
    int x_step, y_step; /* words from one pixel's input, or output, to the next one's */
    const float *x;     /* the input row under kernel row `first`, first block */
    const float *w;     /* [in.blocks], w_block words apart: [rows][Q*step][BLOCK] */
    const float *start; /* initial values of the sums, per pixel or common to all */
    int start_step;     /* floats from a pixel to the next; 0: common to all */
    size_t w_block, x_image, y_image, start_image; /* words from an image to the next */
    unsigned finish;
    const float
        *mask; /* the row of x whose sign decides, for FINISH_MASK; same layout as y */
    float *y;
};

/* For dx, whose buffer may have other gradients in it. */
static inline unsigned back_finish(const struct conv_plan *p)
{
    return p->s.adds ? FINISH_ADD : p->s.bare ? 0 : FINISH_MASK;
}

ALWAYS void conv_pixel(const struct row *a, size_t at, vec lo, vec hi)
{
    float *y = a->y + at;
    vec a_lo, a_hi;
    if (a->finish & FINISH_ADD) {
        load_pixel(y, &a_lo, &a_hi);
        lo += a_lo;
        hi += a_hi;
    }
    if (a->finish & FINISH_RELU) {
        lo = positive(lo);
        hi = positive(hi);
    }
    if (a->finish & FINISH_MASK) {
        load_pixel(a->mask + at, &a_lo, &a_hi);
        lo = where_positive(a_lo, lo);
        hi = where_positive(a_hi, hi);
    }
    if (a->finish & FINISH_FLOATS) {
        store(y, lo);
        store(y + VL, hi);
    } else {
        store_pixel(y, lo, hi);
    }
}

/* Two rows to one row of maxima: the first of equal ones in row order and NaN as the
 * maximum, as in PyTorch. */
ALWAYS void pool_rows(const float *rows, int W, float *y, uint8_t *arg)
{
    for (int j = 0; j < W / 2; j++, rows += BLOCK, y += WORDS) {
        vec best[2];
        for (int half = 0; half < 2; half++, rows += VL, arg += VL) {
            const float *under = rows + W * BLOCK;
            vec a = load(rows), b = load(rows + BLOCK);
            vec d = load(under), e = load(under + BLOCK);
            bits right = (b > a) | (b != b), low_right = (e > d) | (e != e);
            vec top = pick(right, b, a), low = pick(low_right, e, d);
            bits below = (low > top) | (low != low);
            bits which = (below & (2 - low_right)) | (~below & -right); /* true is -1 */
            best[half] = pick(below, low, top);
            *(loose_byte_lanes *)arg = __builtin_convertvector(which, byte_lanes);
        }
        store_pixel(y, best[0], best[1]);
    }
}

#define conv_row    NAMED(conv_row)
#define conv_input  NAMED(conv_input)
#define conv_pack   NAMED(conv_pack)
#define conv_turn   NAMED(conv_turn)
#define conv_unpack NAMED(conv_unpack)
void conv_row(const struct row *a);
/* Copies n images x into the padded layout. */
const float *conv_input(const struct conv_plan *p, struct own *own, int n,
                        const float *x);
/* For pool_run(): packs w to p->w and p->turned; adds all threads' dw and unpacks the sum
 * to dw. */
struct conv_weights {
    const struct conv_plan *p;
    const float *w;
    float *dw;
};
void conv_pack(int part, int parts, void *weights);
void conv_turn(int part, int parts, void *weights);
void conv_unpack(int part, int parts, void *weights);

#endif
