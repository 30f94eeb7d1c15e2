/* Every engine of this machine, of either precision, against the plain one: convolutions
 * with strides and padding, normalisation, means, and what bf16 changes.
 *
 * bf16 is compared where nothing is lost to rounding: on multiples of 1/64 the linear
 * layers must give what fp32 does. What was rounded on its way differs by parts of 256.
 */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "tests/worker/kernels/engines.h"
#include "tests/worker/kernels/factors.h"
#include "tests/worker/kernels/plain.h"
#include "worker/kernels/pool.h"
#include "worker/kernels/rng.h"
#include "worker/kernels/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct scratches memory; /* of the plans */

/* n multiples of 1/64 in [-1, 1]: bfloat16 holds them exactly. */
static float *numbers(size_t n, uint64_t seed)
{
    float *v = xcalloc(n + 1, sizeof(float));
    for (size_t i = 0; i < n; i++)
        v[i] = (float)(rng_word(seed, i) % 129) / 64.0f - 1;
    return v;
}

/* Off by at most `part` of the largest number. */
static void check_near(const char *engine, const char *what, const float *got,
                       const float *want, size_t n, double part)
{
    double most = 1e-3;
    for (size_t i = 0; i < n; i++)
        most = fmax(most, fabs((double)want[i]));
    for (size_t i = 0; i < n; i++)
        if (!(fabs((double)(got[i] - want[i])) <= part * most))
            ck_abort_msg("%s: %s[%zu]: %g, want %g (largest %g)", engine, what, i,
                         (double)got[i], (double)want[i], most);
    ck_assert_msg(got[n] == 0, "%s: %s: written behind its end", engine, what);
}

static double tolerance(const struct kernels *k)
{
    return k->precision == PRECISION_FP32 ? 2e-5 : 0.02;
}

/* ---- the engine's layout ---- */

/* One tap, from images to the engine's layout. */
static struct conv_plan *copy_plan(const struct kernels *k, int B, struct map_shape s,
                                   struct scratches *to)
{
    struct conv_shape copy = {.B = B,
                              .C = s.C,
                              .H = s.H,
                              .W = s.W,
                              .K = s.C,
                              .R = 1,
                              .first = true,
                              .bare = true};
    return k->conv_plan(copy, to);
}

/* A convolution with one tap of 1 puts channel c of x into channel c: the way into the
 * engine's layout; a mean over images of 1x1 would be the way out, so `out` weighs. */
static void into_layout(const struct kernels *k, int B, struct map_shape s,
                        const float *x, float *to)
{
    struct scratches own = {0};
    struct conv_plan *p = copy_plan(k, B, s, &own);
    float *one = xcalloc((size_t)(s.C * s.C), sizeof(float));
    for (int c = 0; c < s.C; c++)
        one[c * s.C + c] = 1;
    k->conv(p, B, x, one, NULL, to);
    scratches_free(&own);
    free(one);
}

/* The gradient of that copy's weights: sums over images and pixels of each pair of
 * channels, which tell one layout from another. */
static void out_of_layout(const struct kernels *k, int B, struct map_shape s,
                          const float *x, const float *from, float *sums)
{
    struct scratches own = {0};
    struct conv_plan *p = copy_plan(k, B, s, &own);
    k->conv_back(p, B, x, sums, from, from, sums, NULL, NULL);
    scratches_free(&own);
}

/* ---- convolutions between norms, as a residual network has them ---- */

static const struct {
    int B, C, H, W, K, R, stride, pad;
    bool adds;
} convs[] = {
    {2, 16, 8, 8, 16, 3, 1, 1, false},
    {3, 33, 9, 7, 40, 3, 2, 1, false},
    {2, 64, 8, 8, 32, 1, 2, 0, true},
    {1, 5, 5, 5, 3, 3, 1, 1, true},
    {2, 70, 6, 6, 65, 3, 2, 1, true},
    {1, 32, 4, 4, 64, 5, 1, 2, false},
    {9, 70, 4, 4, 40, 3, 1, 1, false},
    {7, 40, 8, 7, 66, 3, 2, 1, true},
    {8, 65, 2, 3, 33, 3, 1, 1, true},
    {7, 32, 1, 6, 40, 3, 1, 1, false},
    {5, 33, 5, 5, 32, 4, 3, 2, false},
    {3, 300, 4, 4, 300, 1, 2, 0, false},
    {18, 40, 1, 1, 33, 3, 1, 1, true},
    /* Winograd's method with squares of 4x4 outputs; some above have 2x2 */
    {20, 40, 8, 7, 66, 3, 1, 1, true},
    {16, 33, 11, 9, 20, 3, 1, 0, false},
    {20, 16, 5, 5, 70, 3, 1, 2, false},
};

struct side { /* x -> conv one -> conv two */
    const struct kernels *k;
    struct conv_plan *one, *two;
    float *y1, *y2, *d2, *d1, *sums[2], *dw[2];
};

static struct side a_side(const struct kernels *k, int i, size_t nw1, size_t nw2)
{
    struct conv_shape one = {.B = convs[i].B,
                             .C = 3,
                             .H = convs[i].H,
                             .W = convs[i].W,
                             .K = convs[i].C,
                             .R = 3,
                             .pad = 1,
                             .first = true,
                             .bare = true};
    struct conv_shape two = {.B = convs[i].B,
                             .C = convs[i].C,
                             .H = convs[i].H,
                             .W = convs[i].W,
                             .K = convs[i].K,
                             .R = convs[i].R,
                             .stride = convs[i].stride,
                             .pad = convs[i].pad,
                             .bare = true,
                             .adds = convs[i].adds};
    struct side s = {k, k->conv_plan(one, &memory), k->conv_plan(two, &memory)};
    size_t B = (size_t)convs[i].B;
    s.y1 = xcalloc(k->conv_floats(s.one) * B + 16, sizeof(float));
    s.d1 = xcalloc(k->conv_floats(s.one) * B + 16, sizeof(float));
    s.y2 = xcalloc(k->conv_floats(s.two) * B + 16, sizeof(float));
    s.d2 = xcalloc(k->conv_floats(s.two) * B + 16, sizeof(float));
    s.sums[0] = xcalloc((size_t)(convs[i].K * convs[i].K) + 1, sizeof(float));
    s.sums[1] = xcalloc((size_t)(convs[i].C * convs[i].C) + 1, sizeof(float));
    s.dw[0] = xcalloc(nw1 + 1, sizeof(float));
    s.dw[1] = xcalloc(nw2 + 1, sizeof(float));
    return s;
}

static void free_side(struct side *s)
{
    float *all[] = {s->y1,      s->d1,      s->y2,    s->d2,
                    s->sums[0], s->sums[1], s->dw[0], s->dw[1]};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        free(all[i]);
}

LOOP_TEST(strides_padding_and_sums_agree, ARRAY_LEN(convs) * MAX_ENGINES)
{
    int i = _i % (int)ARRAY_LEN(convs), B = convs[i].B;
    const struct kernels *k = engine_at(_i / (int)ARRAY_LEN(convs));
    if (k == NULL)
        return;
    int OH = (convs[i].H + 2 * convs[i].pad - convs[i].R) / convs[i].stride + 1;
    int OW = (convs[i].W + 2 * convs[i].pad - convs[i].R) / convs[i].stride + 1;
    struct map_shape out = {convs[i].K, OH, OW};
    struct map_shape middle = {convs[i].C, convs[i].H, convs[i].W};
    size_t nx = (size_t)(B * 3 * convs[i].H * convs[i].W);
    size_t nw1 = (size_t)(convs[i].C * 27);
    size_t nw2 = (size_t)(convs[i].K * convs[i].C * convs[i].R * convs[i].R);
    size_t ny = (size_t)(B * out.C * OH * OW),
           n1 = (size_t)(B * middle.C * middle.H * middle.W);
    float *x = numbers(nx, 1), *w1 = numbers(nw1, 2), *w2 = numbers(nw2, 3);
    float *dy = numbers(ny, 4), *before = numbers(n1, 5);
    float *probes[] = {numbers(ny, 6), numbers(n1, 7)};
    pool_set(_i % 2 ? 3 : 1);
    struct side s[2] = {a_side(&kernels_plain, i, nw1, nw2), a_side(k, i, nw1, nw2)};
    for (int e = 0; e < 2; e++) {
        struct side *t = &s[e];
        ck_assert_uint_eq(t->k->map_floats(out), t->k->conv_floats(t->two));
        t->k->conv(t->one, B, x, w1, NULL, t->y1);
        t->k->conv(t->two, B, t->y1, w2, NULL, t->y2);
        out_of_layout(t->k, B, out, probes[0], t->y2, t->sums[0]);
        into_layout(t->k, B, out, dy, t->d2);
        into_layout(t->k, B, middle, before, t->d1); /* to be added to, or written over */
        t->k->conv_back(t->two, B, t->y1, w2, t->y2, t->d2, t->dw[1], NULL, t->d1);
        out_of_layout(t->k, B, middle, probes[1], t->d1, t->sums[1]);
        t->k->conv_back(t->one, B, x, w1, t->y1, t->d1, t->dw[0], NULL, NULL);
    }
    double part = tolerance(k);
    check_near(k->name, "y", s[1].sums[0], s[0].sums[0], (size_t)(out.C * out.C), part);
    check_near(k->name, "dx", s[1].sums[1], s[0].sums[1], (size_t)(middle.C * middle.C),
               part);
    check_near(k->name, "dw2", s[1].dw[1], s[0].dw[1], nw2, part);
    check_near(k->name, "dw1", s[1].dw[0], s[0].dw[0], nw1, part);
    for (int e = 0; e < 2; e++)
        free_side(&s[e]);
    scratches_free(&memory);
    float *all[] = {x, w1, w2, dy, before, probes[0], probes[1]};
    for (size_t j = 0; j < ARRAY_LEN(all); j++)
        free(all[j]);
    pool_set(1);
}

/* ---- convolution, ReLU and pooling to images, as in a small network ---- */

/* The root of the mean square of a difference, relative to what is wanted: where two
 * numbers of a window are nearly equal, rounding decides which of them is the maximum. */
static double relative(const float *got, const float *want, size_t n)
{
    double apart = 0, all = 0;
    for (size_t i = 0; i < n; i++) {
        apart += pow((double)(got[i] - want[i]), 2);
        all += pow((double)want[i], 2);
    }
    return sqrt(apart / all);
}

LOOP_TEST(pooled_convolutions_agree, MAX_ENGINES)
{
    enum { B = 20, C = 40, K = 70, H = 9, W = 11, OUT = K * 3 * 4 };
    const struct kernels *ks[] = {&kernels_plain, engine_at(_i)};
    if (ks[1] == NULL)
        return;
    const struct conv_shape one = {
        .B = B, .C = 3, .H = H, .W = W, .K = C, .R = 3, .pad = 1, .first = true};
    const struct conv_shape two = {
        .B = B, .C = C, .H = H, .W = W, .K = K, .R = 3, .pool = true, .last = true};
    float *x = numbers(B * 3 * H * W, 1), *w1 = numbers(C * 27, 2);
    float *w2 = numbers(K * C * 9, 3), *bias = numbers(K, 4), *dy = numbers(B * OUT, 5);
    float *y[2], *dw[2], *dw1[2], *dbias = numbers(K, 6);
    for (int e = 0; e < 2; e++) {
        const struct kernels *k = ks[e];
        struct conv_plan *first = k->conv_plan(one, &memory),
                         *last = k->conv_plan(two, &memory);
        float *y1 = xcalloc(k->conv_floats(first) * B + 16, sizeof(float));
        float *d1 = xcalloc(k->conv_floats(first) * B + 16, sizeof(float));
        y[e] = xcalloc(B * OUT + 1, sizeof(float));
        dw[e] = xcalloc(K * C * 9 + 1, sizeof(float));
        dw1[e] = xcalloc(C * 27 + 1, sizeof(float));
        k->conv(first, B, x, w1, bias, y1);
        k->conv(last, B, y1, w2, bias, y[e]);
        k->conv_back(last, B, y1, w2, y[e], dy, dw[e], dbias, d1);
        k->conv_back(first, B, x, w1, y1, d1, dw1[e], dbias, NULL);
        scratches_free(&memory);
        free(y1);
        free(d1);
    }
    check_near(ks[1]->name, "y", y[1], y[0], B * OUT, tolerance(ks[1]));
    ck_assert_double_lt(relative(dw[1], dw[0], K * C * 9), 0.1);
    ck_assert_double_lt(relative(dw1[1], dw1[0], C * 27), 0.1);
    float *all[] = {x, w1, w2, bias, dy, dbias, y[0], dw[0], y[1], dw[1], dw1[0], dw1[1]};
    for (size_t j = 0; j < ARRAY_LEN(all); j++)
        free(all[j]);
}

/* ---- normalisation ---- */

static const struct {
    int B, C, H, W;
    bool relu, shortcut;
} norms[] = {{4, 16, 3, 5, true, false},
             {2, 33, 4, 4, true, true},
             {7, 64, 2, 2, false, false},
             {1, 3, 6, 6, false, true}};

struct norm_side { /* what an engine makes of the same inputs */
    float *running, *dw, *dbias;
    float *y_running, *y, *dx, *dshortcut; /* the sums of out_of_layout() */
};

static struct norm_side a_norm_side(const struct kernels *k, int i, const float *x,
                                    const float *add, const float *g)
{
    int B = norms[i].B, C = norms[i].C;
    size_t nc = (size_t)C, square = nc * nc;
    struct map_shape m = {C, norms[i].H, norms[i].W};
    struct norm_shape shape = {B, C, m.H, m.W, norms[i].relu, 1e-5f, 0.25f};
    struct norm_plan *p = k->norm_plan(shape, &memory);
    struct norm_side s = {.running = numbers(2 * nc, 6)};
    float **results[] = {&s.y_running, &s.y, &s.dx, &s.dshortcut};
    float *w = numbers(nc, 4), *bias = numbers(nc, 5);
    float *v[6]; /* x, shortcut, y, dy, dx, dshortcut */
    for (size_t j = 0; j < ARRAY_LEN(v); j++)
        v[j] = xcalloc(k->map_floats(m) * (size_t)B + 16, sizeof(float));
    for (size_t j = 0; j < ARRAY_LEN(results); j++)
        *results[j] = xcalloc(square + 1, sizeof(float));
    s.dw = xcalloc(nc + 1, sizeof(float));
    s.dbias = xcalloc(nc + 1, sizeof(float));
    for (size_t c = 0; c < nc; c++)
        s.running[nc + c] = 1 + fabsf(s.running[nc + c]);
    into_layout(k, B, m, x, v[0]);
    into_layout(k, B, m, add, v[1]);
    into_layout(k, B, m, g, v[3]);
    float *shortcut = norms[i].shortcut ? v[1] : NULL;
    k->norm(p, B, v[0], w, bias, s.running, false, shortcut, v[2]);
    out_of_layout(k, B, m, x, v[2], s.y_running);
    k->norm(p, B, v[0], w, bias, s.running, true, shortcut, v[2]);
    k->norm_back(p, B, v[0], w, v[2], v[3], s.dw, s.dbias, v[4], shortcut ? v[5] : NULL);
    out_of_layout(k, B, m, x, v[2], s.y);
    out_of_layout(k, B, m, add, v[4], s.dx);
    out_of_layout(k, B, m, add, v[5], s.dshortcut);
    scratches_free(&memory);
    for (size_t j = 0; j < ARRAY_LEN(v); j++)
        free(v[j]);
    free(w);
    free(bias);
    return s;
}

static void free_norm_side(struct norm_side *s)
{
    float *all[] = {s->running, s->dw, s->dbias, s->y_running, s->y, s->dx, s->dshortcut};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        free(all[i]);
}

LOOP_TEST(norms_agree, ARRAY_LEN(norms) * MAX_ENGINES)
{
    int i = _i % (int)ARRAY_LEN(norms);
    const struct kernels *k = engine_at(_i / (int)ARRAY_LEN(norms));
    if (k == NULL)
        return;
    size_t nc = (size_t)norms[i].C, square = nc * nc;
    size_t n = (size_t)(norms[i].B * norms[i].C * norms[i].H * norms[i].W);
    float *x = numbers(n, 1), *add = numbers(n, 2), *g = numbers(n, 3);
    pool_set(_i % 2 ? 3 : 1);
    struct norm_side want = a_norm_side(&kernels_plain, i, x, add, g);
    struct norm_side got = a_norm_side(k, i, x, add, g);
    double part = tolerance(k);
    check_near(k->name, "y with running statistics", got.y_running, want.y_running,
               square, part);
    check_near(k->name, "y", got.y, want.y, square, part);
    check_near(k->name, "dx", got.dx, want.dx, square, part);
    check_near(k->name, "dshortcut", got.dshortcut, want.dshortcut, square, part);
    check_near(k->name, "dw", got.dw, want.dw, nc, part);
    check_near(k->name, "dbias", got.dbias, want.dbias, nc, part);
    check_near(k->name, "running", got.running, want.running, 2 * nc, 1e-5);
    free_norm_side(&want);
    free_norm_side(&got);
    free(x);
    free(add);
    free(g);
    pool_set(1);
}

/* Their sums over images and pixels say what lies where, see out_of_layout(). */
LOOP_TEST(means_agree, ARRAY_LEN(norms) * MAX_ENGINES)
{
    int i = _i % (int)ARRAY_LEN(norms), B = norms[i].B;
    const struct kernels *k[2] = {&kernels_plain, engine_at(_i / (int)ARRAY_LEN(norms))};
    struct map_shape s = {norms[i].C, norms[i].H, norms[i].W};
    size_t C = (size_t)s.C, n = (size_t)(B * s.C * s.H * s.W);
    if (k[1] == NULL)
        return;
    float *x = numbers(n, 1), *dy = numbers((size_t)B * C, 2);
    float *probe = numbers(n, 3), *y[2], *dx[2];
    pool_set(_i % 2 ? 3 : 1);
    for (int e = 0; e < 2; e++) {
        size_t floats = k[e]->map_floats(s) * (size_t)B;
        float *images = xcalloc(floats + 16, sizeof *images);
        y[e] = xcalloc((size_t)B * C + 1, sizeof(float));
        dx[e] = xcalloc(C * C + 1, sizeof(float));
        into_layout(k[e], B, s, x, images);
        k[e]->mean(s, B, images, y[e]);
        k[e]->mean_back(s, B, dy, images);
        out_of_layout(k[e], B, s, probe, images, dx[e]);
        free(images);
    }
    check_near(k[1]->name, "mean", y[1], y[0], (size_t)B * C, tolerance(k[1]));
    check_near(k[1]->name, "dx", dx[1], dx[0], C * C, tolerance(k[1]));
    float *all[] = {x, dy, probe, y[0], y[1], dx[0], dx[1]};
    for (size_t j = 0; j < ARRAY_LEN(all); j++)
        free(all[j]);
    pool_set(1);
}

LOOP_TEST(images_with_a_bad_number_are_found, MAX_ENGINES)
{
    const struct kernels *k = engine_at(_i);
    struct map_shape s = {33, 5, 7};
    size_t n = (size_t)(2 * s.C * s.H * s.W);
    if (k == NULL)
        return;
    size_t floats = 2 * k->map_floats(s);
    float *x = numbers(n, 1), *images = xcalloc(floats + 16, sizeof *images);
    into_layout(k, 2, s, x, images);
    ck_assert_msg(k->finite(images, floats, true), "%s", k->name);
    x[n - 1] = INFINITY;
    into_layout(k, 2, s, x, images);
    ck_assert_msg(!k->finite(images, floats, true), "%s", k->name);
    free(x);
    free(images);
}

/* The reference itself: its gradients are finite differences of a sum over y. */
TEST(the_plain_norm_has_its_own_gradients)
{
    enum { B = 3, C = 2, P = 4, N = B * C * P };
    const struct kernels *k = &kernels_plain;
    struct norm_plan *p =
        k->norm_plan((struct norm_shape){B, C, 2, 2, true, 1e-5f, 0}, &memory);
    float *x = numbers(N, 1), *g = numbers(N, 2), *add = numbers(N, 3),
          *y = numbers(N, 4);
    float w[C] = {1.25f, -0.5f}, bias[C] = {0.25f, 0.75f}, running[2 * C] = {0};
    float dw[C], dbias[C], dx[N], dadd[N], eps = 1e-3f;
    k->norm(p, B, x, w, bias, running, true, add, y);
    k->norm_back(p, B, x, w, y, g, dw, dbias, dx, dadd);
    struct {
        float *at;
        float want;
    } probes[] = {{&x[0], dx[0]},     {&x[7], dx[7]},       {&x[N - 1], dx[N - 1]},
                  {&w[0], dw[0]},     {&w[1], dw[1]},       {&bias[1], dbias[1]},
                  {&add[3], dadd[3]}, {&add[13], dadd[13]}, {&bias[0], dbias[0]}};
    for (size_t i = 0; i < ARRAY_LEN(probes); i++) {
        double sum[2] = {0, 0};
        float was = *probes[i].at;
        for (int side = 0; side < 2; side++) {
            *probes[i].at = was + (side ? eps : -eps);
            k->norm(p, B, x, w, bias, running, true, add, y);
            for (int j = 0; j < N; j++)
                sum[side] += (double)y[j] * (double)g[j];
        }
        *probes[i].at = was;
        ck_assert_double_eq_tol((sum[1] - sum[0]) / (2 * (double)eps),
                                (double)probes[i].want, 5e-3);
    }
    scratches_free(&memory);
    free(x);
    free(g);
    free(add);
    free(y);
}

/* ---- what bf16 keeps ---- */

static const struct linear_shape linears[] = {
    {1, 1, 1, false},    {2, 5, 1, false},    {64, 784, 64, true}, {33, 301, 37, true},
    {70, 513, 31, true}, {17, 17, 17, false}, {3, 999, 129, true}, {16, 64, 64, false}};

LOOP_TEST(bf16_linear_layers_lose_nothing_on_exact_numbers,
          ARRAY_LEN(linears) * MAX_ENGINES)
{
    const struct linear_shape s = linears[_i % (int)ARRAY_LEN(linears)];
    const struct kernels *k[2] = {&kernels_plain,
                                  engine_at(_i / (int)ARRAY_LEN(linears))};
    if (k[1] == NULL || k[1]->precision != PRECISION_BF16)
        return;
    pool_set(_i % 2 ? 3 : 1);
    struct linear_plan *p[2] = {k[0]->linear_plan(s, &memory),
                                k[1]->linear_plan(s, &memory)};
    for (int n = s.B; n > 0; n = n > 1 ? n / 2 : 0) {
        size_t nx = (size_t)(n * s.C), nw = (size_t)(s.K * s.C), ny = (size_t)(n * s.K);
        float *x = numbers(nx, 1), *w = numbers(nw, 2), *bias = numbers((size_t)s.K, 3);
        float *dy = numbers(ny, 4), *out[2][4];
        for (int e = 0; e < 2; e++) {
            const size_t sizes[] = {ny, nw, (size_t)s.K, nx};
            for (int j = 0; j < 4; j++)
                out[e][j] = xcalloc(sizes[j] + 1, sizeof(float));
            k[e]->linear(p[e], n, x, w, bias, out[e][0]);
            k[e]->linear_back(p[e], n, x, w, out[0][0], dy, out[e][1], NULL, out[e][2],
                              out[e][3]);
        }
        check_near(k[1]->name, "y", out[1][0], out[0][0], ny, 1e-6);
        check_near(k[1]->name, "dw", out[1][1], out[0][1], nw, 1e-6);
        check_near(k[1]->name, "dbias", out[1][2], out[0][2], (size_t)s.K, 1e-6);
        check_near(k[1]->name, "dx", out[1][3], out[0][3], nx, 1e-6);
        check_factors(k[1], p[1], s, n, x, w, out[0][0], dy);
        for (int e = 0; e < 2; e++)
            for (int j = 0; j < 4; j++)
                free(out[e][j]);
        free(x);
        free(w);
        free(bias);
        free(dy);
    }
    scratches_free(&memory);
    pool_set(1);
}

/* Rounded to nearest, ties to even; what is no number stays none, and is not lost. */
LOOP_TEST(bf16_rounds_as_ieee_does, MAX_ENGINES)
{
    static const float in[] = {1, 1 + 0x1p-8f, 1 + 3 * 0x1p-8f, 1 + 0x1.8p-8f,
                               -3.14159274f};
    static const float want[] = {1, 1, 1 + 4 * 0x1p-8f, 1 + 0x1p-7f, -3.140625f};
    const struct kernels *k = engine_at(_i);
    if (k == NULL || k->precision != PRECISION_BF16)
        return;
    struct linear_plan *p =
        k->linear_plan((struct linear_shape){1, 1, 1, false}, &memory);
    for (size_t i = 0; i < ARRAY_LEN(in); i++) {
        float one = 1, zero = 0, y = 0;
        k->linear(p, 1, &in[i], &one, &zero, &y);
        ck_assert_msg(y == want[i], "%s: %a becomes %a, not %a", k->name, (double)in[i],
                      (double)y, (double)want[i]);
        k->linear(p, 1, &one, &in[i], &zero, &y);
        ck_assert(y == want[i]);
        k->linear(p, 1, &one, (float[]){NAN}, &zero, &y);
        ck_assert(isnan(y));
        k->linear(p, 1, (float[]){NAN}, &one, &zero, &y);
        ck_assert(isnan(y));
        k->linear(p, 1, (float[]){INFINITY}, &one, &zero, &y);
        ck_assert(isinf(y));
    }
    scratches_free(&memory);
}

TEST(engines_of_a_precision_go_by_name)
{
    struct ddp_err err = {""};
    const struct kernels *k = kernels_get(NULL, PRECISION_BF16, &err);
    ck_assert(k && k->precision == PRECISION_BF16);
    ck_assert_ptr_eq(kernels_get(k->name, PRECISION_BF16, &err), k);
    ck_assert_ptr_null(kernels_get("abacus", PRECISION_BF16, &err));
    ck_assert_ptr_nonnull(strstr(err.text, "'abacus'; this machine has for bf16: "));
}
