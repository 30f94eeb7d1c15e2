#include "tests/support/suite.h"

#include "common/mem.h"
#include "tests/worker/kernels/engines.h"
#include "tests/worker/kernels/plain.h"
#include "worker/kernels/rng.h"
#include "worker/kernels/scratch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Images of one pixel and 32 channels: with these, all fp32 layouts are plain. */
enum { C = 32, ALL = 12, FIRST = 7 };

static const struct norm_shape shape = {ALL, C, 1, 1, true, 1e-5f, 0.1f};

struct norm_case {
    float x[ALL * C], shortcut[ALL * C], dy[ALL * C], w[C], bias[C];
    float y[ALL * C], dx[ALL * C], dshortcut[ALL * C], dw[C], dbias[C], running[2 * C];
};

static void fill(float *v, size_t n, uint64_t stream, float middle)
{
    for (size_t i = 0; i < n; i++)
        v[i] = middle + 2 * rng_uniform(rng_key(5, stream), i) - 1;
}

static void draw(struct norm_case *c)
{
    *c = (struct norm_case){0};
    fill(c->x, ALL * C, 1, 3);
    fill(c->shortcut, ALL * C, 2, 0);
    fill(c->dy, ALL * C, 3, 0);
    fill(c->w, C, 4, 1);
    fill(c->bias, C, 5, 0);
    for (int i = 0; i < C; i++)
        c->running[C + i] = 1;
}

/* What a rank adds up: first it is written down, and then the other's is added. */
struct other {
    double v[2][2 * C + 1]; /* of a forward and a backward */
    const struct other *theirs;
    int at;
};

static void add_theirs(double *v, size_t n, void *arg)
{
    struct other *o = arg;
    memcpy(o->v[o->at], v, n * sizeof *v);
    for (size_t i = 0; o->theirs && i < n; i++)
        v[i] += o->theirs->v[o->at][i];
    o->at++;
}

/* Samples [from, to) of the case, normalised together with what `theirs` has noted. */
static void pass(const struct kernels *k, struct norm_case *c, int from, int to,
                 struct other *notes, const struct other *theirs)
{
    struct scratches memory = {0};
    struct norm_plan *p = k->norm_plan(shape, &memory);
    ck_assert_ptr_nonnull(p);
    int at = from * C, n = to - from;
    if (notes) {
        notes->theirs = theirs;
        notes->at = 0;
        k->norm_share(p, add_theirs, notes);
    }
    k->norm(p, n, c->x + at, c->w, c->bias, c->running, true, c->shortcut + at,
            c->y + at);
    k->norm_back(p, n, c->x + at, c->w, c->y + at, c->dy + at, c->dw, c->dbias,
                 c->dx + at, c->dshortcut + at);
    scratches_free(&memory);
}

static void assert_close(const float *a, const float *b, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(fabsf(a[i] - b[i]) <= 2e-5f * (1 + fabsf(b[i])), "%s[%zu]: %g, %g",
                      what, i, (double)a[i], (double)b[i]);
}

/* Two ranks with 7 and 5 samples, or with 12 and none, are one with 12. The engines go
 * through all of it twice: what a rank adds up hangs in backward on the other's forward.
 */
static void assert_ranks_are_one(int cut)
{
    for (int i = 0; i < nengines(); i++) {
        const struct kernels *k = engine_at(i);
        struct norm_case truth, ours;
        struct other a = {0}, b = {0}, unused;
        draw(&truth);
        pass(&kernels_plain, &truth, 0, ALL, NULL, NULL);
        draw(&ours);
        pass(k, &ours, 0, cut, &a, NULL);
        pass(k, &ours, cut, ALL, &b, NULL);
        struct other a1 = a, b1 = b;
        draw(&ours);
        pass(k, &ours, 0, cut, &a, &b1); /* now backward's sums are of all, too */
        pass(k, &ours, cut, ALL, &b, &a1);
        a1 = a;
        b1 = b;
        float dw[C], dbias[C], running[2 * C];
        draw(&ours);
        pass(k, &ours, 0, cut, &unused, &b1);
        memcpy(dw, ours.dw, sizeof dw);
        memcpy(dbias, ours.dbias, sizeof dbias);
        memcpy(running, ours.running, sizeof running);
        for (int j = 0; j < C; j++) {
            ours.running[j] = 0;
            ours.running[C + j] = 1;
        }
        pass(k, &ours, cut, ALL, &unused, &a1);
        for (int j = 0; j < C; j++) {
            dw[j] += ours.dw[j];
            dbias[j] += ours.dbias[j];
        }
        assert_close(ours.y, truth.y, ALL * C, "y");
        assert_close(ours.dx, truth.dx, ALL * C, "dx");
        assert_close(ours.dshortcut, truth.dshortcut, ALL * C, "dshortcut");
        assert_close(dw, truth.dw, C, "dw");
        assert_close(dbias, truth.dbias, C, "dbias");
        assert_close(running, truth.running, 2 * C, "running");
        ck_assert_mem_eq(running, ours.running, sizeof running);
    }
}

TEST(two_ranks_normalise_as_one)
{
    assert_ranks_are_one(FIRST);
}

TEST(a_rank_without_samples_takes_part)
{
    assert_ranks_are_one(ALL);
}

TEST(a_bad_number_leaves_the_running_means)
{
    enum { BAD = 1 };
    for (int i = 0; i <= nengines(); i++) {
        const struct kernels *k = i < nengines() ? engine_at(i) : &kernels_plain;
        struct norm_case good, bad;
        draw(&good);
        draw(&bad);
        bad.x[3 * C + BAD] = NAN;
        pass(k, &good, 0, ALL, NULL, NULL);
        pass(k, &bad, 0, ALL, NULL, NULL);
        ck_assert(isnan(bad.y[BAD])); /* it is not hidden from the loss */
        good.running[BAD] = 0;
        good.running[C + BAD] = 1;
        ck_assert_mem_eq(bad.running, good.running, sizeof good.running);
    }
}

/* Not in padding channels, either: what follows multiplies them by 0. */
LOOP_TEST(a_bad_number_does_not_reach_the_next_test, MAX_ENGINES)
{
    enum { FEW = 3 };
    const float w[FEW] = {1, 1, 1}, bias[FEW] = {0};
    float running[2 * FEW] = {0, 0, 0, 1, 1, 1};
    const struct kernels *k = engine_at(_i);
    struct scratches memory = {0};
    if (!k)
        return;
    struct norm_plan *p =
        k->norm_plan((struct norm_shape){1, FEW, 1, 1, true, 1e-5f, 0.1f}, &memory);
    size_t floats = k->map_floats((struct map_shape){FEW, 1, 1});
    float *x = xcalloc(floats, sizeof *x), *y = xcalloc(floats, sizeof *y);
    memset(x, 0xff, floats * sizeof *x); /* NaN */
    k->norm(p, 1, x, w, bias, running, true, NULL, y);
    memset(x, 0, floats * sizeof *x);
    k->norm(p, 1, x, w, bias, running, false, NULL, y);
    ck_assert(k->finite(y, floats, true));
    scratches_free(&memory);
    free(x);
    free(y);
}

TEST(alone_all_engines_agree)
{
    for (int i = 0; i < nengines(); i++) {
        const struct kernels *k = engine_at(i);
        struct norm_case truth, ours;
        draw(&truth);
        draw(&ours);
        pass(&kernels_plain, &truth, 0, ALL, NULL, NULL);
        pass(k, &ours, 0, ALL, NULL, NULL);
        assert_close(ours.y, truth.y, ALL * C, "y");
        assert_close(ours.dx, truth.dx, ALL * C, "dx");
        assert_close(ours.dw, truth.dw, C, "dw");
        assert_close(ours.running, truth.running, 2 * C, "running");
    }
}
