/* worker/kernels/vector_conv.c - convolution with ReLU and pooling; vector_conv_impl.h
 * describes the methods */
#include "worker/kernels/vector_conv_impl.h"

#include "worker/kernels/pool.h"
#include "worker/kernels/scratch.h"

#include <string.h>

enum { GROUP_PIXELS = 512 }; /* of a group of images */

/* ---- the plan ---- */

/* Images per group: enough pixels to make reading the weights worth while. With
 * pooling, or NCHW on one side, images are processed one by one. */
static int group_of(const struct conv_plan *p)
{
    int images = GROUP_PIXELS / (p->full.H * p->full.W);
    if (p->s.pool || p->s.first || p->s.last || images < 1)
        return 1;
    return at_most(images, p->s.B);
}

static void plan_maps(struct conv_plan *p)
{
    const struct conv_shape *s = &p->s;
    int OH = (s->H + 2 * s->pad - s->R) / p->s.stride + 1;
    int OW = (s->W + 2 * s->pad - s->R) / p->s.stride + 1;
    int kblocks = round_up(s->K, BLOCK) / BLOCK;
    p->in = s->first ? (struct maps){s->C, 1, s->H, s->W}
                     : (struct maps){round_up(s->C, BLOCK) / BLOCK, WORDS, s->H, s->W};
    p->full = (struct maps){kblocks, WORDS, OH, OW};
    p->out = s->pool ? (struct maps){kblocks, WORDS, OH / 2, OW / 2} : p->full;
    p->group = group_of(p);
    winograd_plan(p);
    p->method = p->winograd ? &conv_winograd : &conv_direct;
    int side = p->winograd ? p->winograd + 2 : s->R;
    p->taps = (size_t)(kblocks * BLOCK) * (size_t)(side * side) *
              (size_t)(s->first ? s->C : p->in.blocks * BLOCK);
}

static void plan_own(struct conv_plan *p, struct own *o)
{
    size_t in = p->winograd  ? 0
                : p->s.first ? maps_words(p->full)
                             : (size_t)p->group * maps_words(p->in);
    size_t out = p->s.last ? maps_words(p->out) : 0;
    p->method->room(p, o);
    o->pooled = scratch_in(p->memory, out);
    o->planes = scratch_in(p->memory, out * PER_WORD);
    o->floats = scratch_in(p->memory, (in > out ? in : out) * PER_WORD);
    if (p->s.pool)
        o->full = scratch_in(p->memory, maps_words(p->full));
    o->pack = scratch_in(p->memory, (size_t)(2 * p->s.R * p->s.R) * BLOCK * BLOCK);
    o->dw = scratch_in(p->memory, p->taps);
    o->dbias = scratch_in(p->memory, (size_t)p->full.blocks * BLOCK);
}

struct conv_plan *NAMED(conv_plan)(struct conv_shape s, struct scratches *memory)
{
    struct conv_plan *p = scratch_bytes(memory, sizeof(*p));
    p->memory = memory;
    p->s = s;
    p->s.stride = s.stride ? s.stride : 1;
    plan_maps(p);
    p->w = (elem *)scratch_in(p->memory, p->taps);
    p->turned = (elem *)scratch_in(p->memory, p->taps);
    p->bias = scratch_in(p->memory, (size_t)p->full.blocks * BLOCK);
    if (s.pool)
        p->arg = scratch_bytes(memory, (size_t)s.B * (size_t)p->out.blocks *
                                           (size_t)(p->out.H * p->out.W) * BLOCK);
    p->threads = pool_threads();
    p->own = scratch_bytes(memory, (size_t)p->threads * sizeof(*p->own));
    for (int i = 0; i < p->threads; i++)
        plan_own(p, &p->own[i]);
    return p;
}

size_t NAMED(conv_floats)(const struct conv_plan *p)
{
    if (p->s.last)
        return (size_t)p->s.K * (size_t)p->out.H * (size_t)p->out.W;
    return maps_words(p->out);
}

/* ---- forward ---- */

struct call {
    struct conv_plan *p;
    int n;
    const float *x, *dy;
    float *y, *dx;
};

/* Two rows of an image to one row of maxima: the first of equal ones in row order and NaN
 * as the maximum, as in PyTorch. */
static void pool_rows(const float *rows, int W, float *y, uint8_t *arg)
{
    for (int j = 0; j < W / 2; j++, rows += 2 * WORDS, y += WORDS) {
        const float *under = rows + W * WORDS;
        vec best[2];
        for (int half = 0; half < 2; half++, arg += VL) {
            vec a = load_half(rows, half), b = load_half(rows + WORDS, half);
            vec d = load_half(under, half), e = load_half(under + WORDS, half);
            bits right = (b > a) | (b != b), low_right = (e > d) | (e != e);
            vec top = pick(right, b, a), low = pick(low_right, e, d);
            bits below = (low > top) | (low != low);
            bits which = (below & (2 - low_right)) | (~below & -right); /* true is -1 */
            best[half] = pick(below, low, top);
            *(loose_byte_lanes *)arg = __builtin_convertvector(which, byte_lanes);
        }
        store_pixel(y, (struct two){best[0], best[1]});
    }
}

static void pool(const struct conv_plan *p, const float *full, float *y, uint8_t *arg)
{
    for (int row = 0; row < p->out.blocks * p->out.H; row++) {
        int kb = row / p->out.H, h = row % p->out.H, at = row * p->out.W;
        pool_rows(full + (kb * p->full.H + 2 * h) * p->full.W * WORDS, p->full.W,
                  y + at * WORDS, arg + at * BLOCK);
    }
}

/* Converts an image from our layout to float planes. */
static void to_planes(const struct conv_plan *p, struct own *own, float *planes)
{
    size_t pixels = (size_t)p->out.H * (size_t)p->out.W;
    const float *from =
        in_floats(own->pooled, pixels * (size_t)p->out.blocks, own->planes);
    for (int k = 0; k < p->s.K; k += BLOCK)
        transpose(from + (size_t)k * pixels, BLOCK, (int)pixels,
                  at_most(BLOCK, p->s.K - k), planes + (size_t)k * pixels, pixels);
}

static void forward_part(int part, int parts, void *arg)
{
    const struct call *a = arg;
    struct conv_plan *p = a->p;
    struct own *own = &p->own[part];
    size_t in = maps_words(p->in), out = NAMED(conv_floats)(p);
    size_t args = (size_t)(p->out.blocks * p->out.H * p->out.W) * BLOCK;
    int from, to;
    pool_share(a->n, 1, part, parts, &from, &to);
    for (int b = from, n; b < to; b += n) {
        n = at_most(p->group, to - b);
        float *y = a->y + (size_t)b * out;
        const float *x = a->x + (size_t)b * in;
        float *target = p->s.last ? own->pooled : y;
        p->method->forward(p, own, n, x, p->s.pool ? own->full : target);
        if (p->s.pool)
            pool(p, own->full, target, p->arg + (size_t)b * args);
        if (p->s.last)
            to_planes(p, own, y);
    }
}

void NAMED(conv)(struct conv_plan *p, int n, const float *x, const float *w,
                 const float *bias, float *y)
{
    struct conv_weights weights = {.p = p, .w = w};
    pool_each(p->full.blocks, conv_pack, &weights);
    if (bias)
        memcpy(p->bias, bias, (size_t)p->s.K * sizeof(float));
    struct call call = {.p = p, .n = n, .x = x, .y = y};
    pool_run(forward_part, &call);
}

/* ---- backward ---- */

/* Converts an image from float planes to our layout. */
static void from_planes(const struct conv_plan *p, struct own *own)
{
    size_t pixels = (size_t)p->out.H * (size_t)p->out.W;
    float *words = own->pooled, *to = PER_WORD == 1 ? words : own->floats;
    if (p->s.K % BLOCK) /* missing channels stay zero */
        memset(to, 0, pixels * (size_t)p->out.blocks * BLOCK * sizeof(float));
    for (int k = 0; k < p->s.K; k += BLOCK)
        transpose(own->planes + (size_t)k * pixels, pixels, at_most(BLOCK, p->s.K - k),
                  (int)pixels, to + (size_t)k * pixels, BLOCK);
    for (size_t i = 0; to != words && i < pixels * (size_t)p->out.blocks; i++)
        store_pixel(words + i * WORDS, take(to + i * BLOCK));
}

/* The gradient of n images before ReLU, in our layout, which it has between layers, where
 * it is already masked. */
static const float *unmask(const struct conv_plan *p, struct own *own, const float *y,
                           const float *dy)
{
    if (!p->s.last)
        return dy;
    float *planes = own->planes;
    size_t n = NAMED(conv_floats)(p);
    for (size_t i = 0; i < n; i++)
        planes[i] = y[i] > 0 ? dy[i] : 0;
    from_planes(p, own);
    return own->pooled;
}

static void add_bias(const struct conv_plan *p, const float *g, float *dbias)
{
    size_t pixels = (size_t)p->out.H * (size_t)p->out.W;
    for (int kb = 0; kb < p->out.blocks; kb++, dbias += BLOCK) {
        struct two sum = take(dbias);
        for (size_t i = 0; i < pixels; i++, g += WORDS)
            sum = plus(sum, pixel(g));
        put(dbias, sum);
    }
}

/* Scatters each gradient to the position of its maximum. */
static void unpool(const struct conv_plan *p, const float *words, const uint8_t *arg,
                   float *dy)
{
    const elem *g = (const elem *)words;
    int wide = p->full.W * BLOCK;
    if (p->full.H % 2 || p->full.W % 2) /* the last row or column is not pooled */
        memset(dy, 0, maps_words(p->full) * sizeof(float));
    for (int row = 0; row < p->out.blocks * p->out.H; row++) {
        int kb = row / p->out.H, i = row % p->out.H;
        elem *to = (elem *)dy + (kb * p->full.H + 2 * i) * wide;
        for (int j = 0; j < p->out.W; j++, to += 2 * BLOCK, g += BLOCK, arg += BLOCK)
            for (int c = 0; c < BLOCK; c++) {
                to[c] = arg[c] == 0 ? g[c] : 0;
                to[BLOCK + c] = arg[c] == 1 ? g[c] : 0;
                to[wide + c] = arg[c] == 2 ? g[c] : 0;
                to[wide + BLOCK + c] = arg[c] == 3 ? g[c] : 0;
            }
    }
}

/* Images [b, b + n) */
static void back_group(const struct call *a, struct own *own, int b, int n)
{
    const struct conv_plan *p = a->p;
    size_t in = maps_words(p->in), out = NAMED(conv_floats)(p);
    size_t args = (size_t)(p->out.blocks * p->out.H * p->out.W) * BLOCK;
    const float *x = a->x + (size_t)b * in;
    const float *g = unmask(p, own, a->y + (size_t)b * out, a->dy + (size_t)b * out);
    for (int i = 0; i < n && !p->s.bare; i++)
        add_bias(p, g + (size_t)i * out, own->dbias);
    if (p->s.pool) {
        unpool(p, g, p->arg + (size_t)b * args, own->full);
        g = own->full;
    }
    p->method->taps(p, own, n, x, g);
    if (a->dx)
        p->method->back(p, own, n, x, g, a->dx + (size_t)b * in);
}

static void back_part(int part, int parts, void *arg)
{
    const struct call *a = arg;
    struct conv_plan *p = a->p;
    struct own *own = &p->own[part];
    int from, to;
    memset(own->dbias, 0, (size_t)p->out.blocks * BLOCK * sizeof(float));
    pool_share(a->n, 1, part, parts, &from, &to);
    own->begun = false;
    if (from == to)
        memset(own->dw, 0, p->taps * sizeof(float));
    for (int b = from; b < to; b += p->group)
        back_group(a, own, b, at_most(p->group, to - b));
}

void NAMED(conv_back)(struct conv_plan *p, int n, const float *x, const float *w,
                      const float *y, const float *dy, float *dw, float *dbias, float *dx)
{
    struct conv_weights weights = {.p = p, .w = w, .dw = dw};
    if (dx)
        pool_each(p->full.blocks, conv_turn, &weights);
    struct call call = {p, n, x, dy, (float *)(uintptr_t)y, dx};
    pool_run(back_part, &call);
    struct own *sum = &p->own[0];
    for (int i = 1; i < p->threads; i++)
        for (int k = 0; k < p->s.K; k++)
            sum->dbias[k] += p->own[i].dbias[k];
    pool_each(p->full.blocks, conv_unpack, &weights);
    if (dbias)
        memcpy(dbias, sum->dbias, (size_t)p->s.K * sizeof(float));
}
