/* worker/kernels/vector_winograd.c - 3x3 convolutions by Winograd's minimal filtering
 *
 * Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016. m x m
 * outputs y of a channel come from a square of (m+2) x (m+2) inputs d, which is
 * transformed as the kernel g is. Its (m+2)^2 numbers, the points, take as many products,
 * 16 or 36 in place of 36 or 144:
 *
 *     y = A' M A,   M = sum over channels of u * v,   u = G g G',   v = B' d B
 *
 * For each point, that sum is a product of matrices, channels by squares; likewise for
 * dx, which is such a convolution of dy with the rotated kernels. The gradients are those
 * of the formula: the gradient of M is A dy A', that of u its product with v, and dw =
 * G' du G. With m = 2 rounding errors are 0.7 to 1.5 times those of a direct convolution,
 * with m = 4 3 to 7 times, 0.6 to 3 parts in a million (bench/experiments.md).
 *
 * Some squares of a group of images are processed together. With up to 64 channels their
 * v and M fit in a second-level cache of 512 KB; with more channels there are more
 * squares, since reading u then costs more than these misses. Inputs are read from images
 * without padding. With bf16 all of this is fp32, except the images; AVX512-BF16 makes
 * direct convolutions faster than 2x2 squares. A square is the paper's tile; here a tile
 * is what registers hold.
 */
#include "worker/kernels/vector_conv_impl.h"

enum { POINTS_MAX = 36, OUTPUTS_MAX = 16 };

/* Calls f(m, ...) with a constant m. */
#define WITH_M(m, f, ...) ((m) == 2 ? f(2, __VA_ARGS__) : f(4, __VA_ARGS__))

/* ---- the plan ---- */

static int points_of(int m)
{
    return (m + 2) * (m + 2);
}

static int squares_in(int m, int H, int W)
{
    return ((H + m - 1) / m) * ((W + m - 1) / m);
}

/* A transformed kernel has 16 or 36 numbers in place of 9. Transforming it costs more
 * than the products save unless there are enough squares; kernels of 36 numbers need
 * four squares at once, and should fit in the third-level cache. For one pixel a direct
 * convolution has one row of taps to compute. */
static int method_for(const struct conv_plan *p)
{
    int H = p->full.H, W = p->full.W;
    int of_2 = squares_in(2, H, W), of_4 = squares_in(4, H, W);
    if (p->s.R != 3 || p->s.stride != 1 || p->s.first || H * W == 1)
        return 0;
    if (p->s.B * of_4 >= 32 && p->group * of_4 >= 4 && 36 * of_4 < 16 * of_2 &&
        p->in.blocks * p->full.blocks * BLOCK * BLOCK <= 256 * 256)
        return 4;
    bool fast = BF16 && VL == 16; /* two products in one instruction */
    return p->s.B * of_2 >= 16 && !fast ? 2 : 0;
}

static int most_blocks(const struct conv_plan *p)
{
    return at_least(p->in.blocks, p->full.blocks);
}

void winograd_plan(struct conv_plan *p)
{
    p->winograd = method_for(p);
    /* v and M take 256 KB, or more: at least 24 squares, and enough of them to make
     * reading u worth while */
    int blocks = p->in.blocks + p->full.blocks;
    int fit = (64 << 10) / (points_of(p->winograd) * blocks * BLOCK);
    int channels = most_blocks(p) * BLOCK;
    p->squares = at_most(96, at_least(24, at_least(fit, channels * 3 / 8)));
}

static void winograd_room(struct conv_plan *p, struct own *own)
{
    int m = p->winograd, image = at_least(squares_in(m, p->full.H, p->full.W),
                                          squares_in(m, p->in.H, p->in.W));
    int squares = at_most(p->squares, p->group * image);
    size_t point = (size_t)(squares * most_blocks(p) * BLOCK) + LINE;
    own->v = scratch_in(p->memory, (size_t)points_of(p->winograd) * point);
    own->M = scratch_in(p->memory, (size_t)points_of(p->winograd) * point);
}

/* ---- transforms of a row or a column, from and to vectors at a distance ---- */

/* B' */
ALWAYS void input_line(int m, const vec *d, vec *v, int step)
{
    vec d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
    if (m == 2) {
        v[0] = d[0] - d2;
        v[step] = d1 + d2;
        v[2 * step] = d2 - d1;
        v[3 * step] = d1 - d3;
        return;
    }
    vec d4 = d[4 * step], even = d4 - 4 * d2, odd = d3 - 4 * d1;
    v[0] = 4 * d[0] - 5 * d2 + d4;
    v[step] = even + odd;
    v[2 * step] = even - odd;
    even = d4 - d2;
    odd = 2 * (d3 - d1);
    v[3 * step] = even + odd;
    v[4 * step] = even - odd;
    v[5 * step] = 4 * d1 - 5 * d3 + d[5 * step];
}

/* A' */
ALWAYS void output_line(int m, const vec *M, int step, vec *y, int y_step)
{
    vec even = M[step] + M[2 * step], odd = M[step] - M[2 * step];
    if (m == 2) {
        y[0] = M[0] + even;
        y[y_step] = odd - M[3 * step];
        return;
    }
    vec even_2 = M[3 * step] + M[4 * step], odd_2 = M[3 * step] - M[4 * step];
    y[0] = M[0] + even + even_2;
    y[y_step] = odd + 2 * odd_2;
    y[2 * y_step] = even + 4 * even_2;
    y[3 * y_step] = odd + 8 * odd_2 + M[5 * step];
}

/* A */
ALWAYS void gradient_line(int m, const vec *y, vec *M, int step)
{
    M[0] = y[0];
    if (m == 2) {
        M[step] = y[0] + y[step];
        M[2 * step] = y[0] - y[step];
        M[3 * step] = -y[step];
        return;
    }
    vec even = y[0] + y[2 * step], odd = y[step] + y[3 * step];
    M[step] = even + odd;
    M[2 * step] = even - odd;
    even = y[0] + 4 * y[2 * step];
    odd = 2 * y[step] + 8 * y[3 * step];
    M[3 * step] = even + odd;
    M[4 * step] = even - odd;
    M[5 * step] = y[3 * step];
}

/* G */
ALWAYS void kernel_line(int m, const vec *g, int g_step, vec *u, int step)
{
    vec g0 = g[0], g1 = g[g_step], g2 = g[2 * g_step];
    float by = m == 2 ? 1 / 2.0f : -1 / 6.0f;
    vec even = (g0 + g2) * by, odd = g1 * by;
    u[0] = m == 2 ? g0 : g0 * 0.25f;
    u[step] = even + odd;
    u[2 * step] = even - odd;
    if (m == 4) {
        even = g0 * (1 / 24.0f) + g2 * (1 / 6.0f);
        odd = g1 * (1 / 12.0f);
        u[3 * step] = even + odd;
        u[4 * step] = even - odd;
    }
    u[(m + 1) * step] = g2;
}

/* G' */
ALWAYS void kernel_gradient_line(int m, const vec *u, int step, vec *g, int g_step)
{
    float by = m == 2 ? 1 / 2.0f : -1 / 6.0f;
    vec even = (u[step] + u[2 * step]) * by, odd = (u[step] - u[2 * step]) * by;
    g[0] = (m == 2 ? u[0] : u[0] * 0.25f) + even;
    g[g_step] = odd;
    g[2 * g_step] = even + u[(m + 1) * step];
    if (m == 4) {
        vec even_2 = u[3 * step] + u[4 * step], odd_2 = u[3 * step] - u[4 * step];
        g[0] += even_2 * (1 / 24.0f);
        g[g_step] += odd_2 * (1 / 12.0f);
        g[2 * g_step] += even_2 * (1 / 6.0f);
    }
}

/* ---- squares ---- */

struct squares { /* some of the squares of a group of images */
    int m;
    int down, across; /* of an image */
    int most;         /* at a time */
    int first, count; /* now */
};

static struct squares squares_of(const struct conv_plan *p, int H, int W)
{
    int m = p->winograd;
    return (struct squares){
        .m = m, .down = (H + m - 1) / m, .across = (W + m - 1) / m, .most = p->squares};
}

/* Goes on to the next ones of n images. */
static bool next_squares(struct squares *s, int n)
{
    s->first += s->count;
    int left = n * s->down * s->across - s->first;
    s->count = left > 0 ? next_tile(left, s->most) : 0;
    return left > 0;
}

struct square {
    int image, h, w; /* its first output */
};

static struct square square_at(const struct squares *s, int i)
{
    int at = s->first + i, each = s->down * s->across, rest = at % each;
    return (struct square){at / each, rest / s->across * s->m, rest % s->across * s->m};
}

/* Floats from a point of v or M to the next: not a power of two, which would put all
 * points into the same lines of the cache. */
static size_t point_of(const struct squares *s, int blocks)
{
    return (size_t)(s->count * blocks * BLOCK) + LINE;
}

/* side x side pixels from (h, w) on, half a block of channels; zeros outside the image.
 */
ALWAYS void load_square(int side, const struct maps *x, const float *from, int half,
                        int h, int w, vec *d)
{
    bool inside = h >= 0 && w >= 0 && h + side <= x->H && w + side <= x->W;
    size_t row = (size_t)(x->W * WORDS);
    if (inside) {
        from += (size_t)h * row + (size_t)(w * WORDS);
        UNROLL for (int i = 0; i < side; i++, from += row)
            UNROLL for (int j = 0; j < side; j++) d[i * side + j] =
                load_half(from + j * WORDS, half);
        return;
    }
    for (int i = h; i < h + side; i++)
        for (int j = w; j < w + side; j++)
            *d++ = i < 0 || j < 0 || i >= x->H || j >= x->W
                       ? (vec){0}
                       : load_half(from + (size_t)i * row + (size_t)(j * WORDS), half);
}

ALWAYS void transform_line(int m, bool gradient, const vec *d, vec *v, int step)
{
    if (gradient)
        gradient_line(m, d, v, step);
    else
        input_line(m, d, v, step);
}

/* Of a block of channels of the square at (h, w): v = B' x B, or, with `gradient`, A x A'
 * of m x m gradients of outputs. */
ALWAYS void transform_square(int m, bool gradient, const struct maps *x,
                             const float *from, int h, int w, float *v, size_t point)
{
    int side = m + 2, given = gradient ? m : side;
    for (int half = 0; half < 2; half++, v += VL) {
        vec d[POINTS_MAX], columns[POINTS_MAX], all[POINTS_MAX];
        load_square(given, x, from, half, h, w, d);
        UNROLL for (int i = 0; i < given; i++)
            transform_line(m, gradient, d + i, columns + i, given);
        UNROLL for (int i = 0; i < side; i++)
            transform_line(m, gradient, columns + i * given, all + i * side, 1);
        UNROLL for (int e = 0; e < side * side; e++) store(v + (size_t)e * point, all[e]);
    }
}

/* y = A' M A of half a block */
ALWAYS void output_square(int m, const float *M, size_t point, vec *y)
{
    int side = m + 2;
    vec all[POINTS_MAX], columns[POINTS_MAX];
    UNROLL for (int e = 0; e < side * side; e++) all[e] = load(M + (size_t)e * point);
    UNROLL for (int i = 0; i < side; i++)
        output_line(m, all + i, side, columns + i, side);
    UNROLL for (int i = 0; i < m; i++)
        output_line(m, columns + i * side, 1, y + m * i, 1);
}

/* v[points][blocks][count][BLOCK] of x, whose first row and column are -pad, or, with
 * `gradient`, A dy A' of the outputs x = dy. */
static void transform(const struct maps *x, const float *images, int pad, bool gradient,
                      const struct squares *s, float *v)
{
    size_t point = point_of(s, x->blocks), block = (size_t)(x->H * x->W * WORDS);
    for (int i = 0; i < s->count; i++) {
        struct square at = square_at(s, i);
        const float *from = images + (size_t)at.image * maps_words(*x);
        float *to = v + i * BLOCK;
        int h = at.h - pad, w = at.w - pad;
        for (int b = 0; b < x->blocks; b++, from += block, to += s->count * BLOCK)
            if (gradient)
                WITH_M(s->m, transform_square, true, x, from, h, w, to, point);
            else
                WITH_M(s->m, transform_square, false, x, from, h, w, to, point);
    }
}

/* ---- products ---- */

/* M = u v; u[to][points][from][BLOCK][BLOCK] */
static void multiply(const struct squares *s, int from, int to, const float *u,
                     const float *v, float *M)
{
    int points = points_of(s->m);
    size_t panel = (size_t)(from * BLOCK * BLOCK), block = (size_t)(s->count * BLOCK);
    struct product p = {.floats = true,
                        .blocks = from,
                        .count = BLOCK,
                        .columns = s->count,
                        .outputs = to,
                        .v_block = block,
                        .v_row = 1,
                        .v_column = BLOCK,
                        .u_block = BLOCK * BLOCK,
                        .u_output = (size_t)points * panel,
                        .M_output = block};
    for (int e = 0; e < points; e++, v += point_of(s, from), M += point_of(s, to))
        conv_multiply(&p, v, u + (size_t)e * panel, M);
}

/* du = v M, added to what is there unless it is `fresh` */
static void multiply_back(const struct squares *s, int from, int to, const float *v,
                          const float *M, bool fresh, float *du)
{
    int points = points_of(s->m);
    size_t block = (size_t)(s->count * BLOCK);
    struct product p = {.floats = true,
                        .more = !fresh,
                        .blocks = 1,
                        .count = s->count,
                        .columns = BLOCK,
                        .outputs = 1,
                        .v_row = BLOCK,
                        .v_column = 1};
    for (int e = 0; e < points; e++, v += point_of(s, from), M += point_of(s, to))
        for (int pair = 0; pair < to * from; pair++) {
            int kb = pair / from, cb = pair % from;
            conv_multiply(&p, v + (size_t)cb * block, M + (size_t)kb * block,
                          du + (size_t)((kb * points + e) * from + cb) * BLOCK * BLOCK);
        }
}

/* ---- outputs ---- */

struct outputs {
    struct maps maps;
    const float *bias; /* NULL: none */
    struct pixels to;
};

ALWAYS void store_square(int m, const struct outputs *o, int block, struct two bias,
                         struct square at, const float *M, size_t point)
{
    vec lo[OUTPUTS_MAX], hi[OUTPUTS_MAX];
    const struct maps *y = &o->maps;
    size_t first = (size_t)((at.image * y->blocks + block) * y->H * y->W);
    output_square(m, M, point, lo);
    output_square(m, M + VL, point, hi);
    for (int i = 0; i < m * m; i++) {
        int h = at.h + i / m, w = at.w + i % m;
        if (h < y->H && w < y->W)
            conv_pixel(&o->to, (first + (size_t)(h * y->W + w)) * WORDS,
                       plus((struct two){lo[i], hi[i]}, bias));
    }
}

/* Of one block of channels. */
static void store_squares(const struct outputs *o, int block, const struct squares *s,
                          const float *M)
{
    size_t point = point_of(s, o->maps.blocks);
    struct two bias = o->bias ? take(o->bias + block * BLOCK) : (struct two){0};
    for (int i = 0; i < s->count; i++, M += BLOCK)
        WITH_M(s->m, store_square, o, block, bias, square_at(s, i), M, point);
}

/* ---- passes over a group ---- */

/* The outputs of n images x, whose first row and column are -pad, and packed kernels. */
static void convolve(const struct conv_plan *p, struct own *own, int n,
                     const struct maps *of, const float *x, int pad, const elem *kernels,
                     const struct outputs *o)
{
    struct squares s = squares_of(p, o->maps.H, o->maps.W);
    while (next_squares(&s, n)) {
        transform(of, x, pad, false, &s, own->v);
        multiply(&s, of->blocks, o->maps.blocks, (const float *)kernels, own->v, own->M);
        for (int b = 0; b < o->maps.blocks; b++)
            store_squares(o, b, &s, own->M + b * s.count * BLOCK);
    }
}

static void winograd_forward(const struct conv_plan *p, struct own *own, int n,
                             const float *x, float *y)
{
    struct pixels to = {.finish = p->s.bare ? 0 : FINISH_RELU, .y = y};
    convolve(p, own, n, &p->in, x, p->s.pad, p->w,
             &(struct outputs){p->full, p->bias, to});
}

static void winograd_back(const struct conv_plan *p, struct own *own, int n,
                          const float *x, const float *dy, float *dx)
{
    struct pixels to = {.finish = back_finish(p), .mask = x, .y = dx};
    convolve(p, own, n, &p->full, dy, 2 - p->s.pad, p->turned,
             &(struct outputs){p->in, NULL, to});
}

static void winograd_taps(const struct conv_plan *p, struct own *own, int n,
                          const float *x, const float *dy)
{
    struct squares s = squares_of(p, p->full.H, p->full.W);
    while (next_squares(&s, n)) {
        transform(&p->in, x, p->s.pad, false, &s, own->v);
        transform(&p->full, dy, 0, true, &s, own->M);
        multiply_back(&s, p->in.blocks, p->full.blocks, own->v, own->M, !own->begun,
                      own->dw);
        own->begun = true;
    }
}

const struct conv_method conv_winograd = {winograd_room, winograd_forward, winograd_taps,
                                          winograd_back};

/* ---- kernels ---- */

ALWAYS void pack_kernel(int m, const float *rows, float *u, size_t point)
{
    int side = m + 2;
    vec g[9], columns[POINTS_MAX], all[POINTS_MAX];
    UNROLL for (int i = 0; i < 9; i++) g[i] = load(rows + i * BLOCK);
    UNROLL for (int j = 0; j < 3; j++) kernel_line(m, g + j, 3, columns + j, 3);
    UNROLL for (int i = 0; i < side; i++)
        kernel_line(m, columns + 3 * i, 1, all + side * i, 1);
    UNROLL for (int e = 0; e < side * side; e++) store(u + (size_t)e * point, all[e]);
}

ALWAYS void unpack_kernel(int m, const float *du, size_t point, float *rows)
{
    int side = m + 2;
    vec all[POINTS_MAX], columns[POINTS_MAX], g[9];
    UNROLL for (int e = 0; e < side * side; e++) all[e] = load(du + (size_t)e * point);
    UNROLL for (int j = 0; j < side; j++)
        kernel_gradient_line(m, all + j, side, columns + j, side);
    UNROLL for (int i = 0; i < 3; i++)
        kernel_gradient_line(m, columns + side * i, 1, g + 3 * i, 1);
    UNROLL for (int i = 0; i < 9; i++) store(rows + i * BLOCK, g[i]);
}

void winograd_pack(int m, int count, const float *rows, float *u, size_t point)
{
    for (int c = 0; c < count; c++, rows += 9 * BLOCK, u += BLOCK)
        for (int half = 0; half < BLOCK; half += VL)
            WITH_M(m, pack_kernel, rows + half, u + half, point);
}

void winograd_unpack(int m, int count, const float *du, size_t point, float *rows)
{
    for (int c = 0; c < count; c++, rows += 9 * BLOCK, du += BLOCK)
        for (int half = 0; half < BLOCK; half += VL)
            WITH_M(m, unpack_kernel, du + half, point, rows + half);
}
