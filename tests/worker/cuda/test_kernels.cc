/* tests/worker/cuda/test_kernels.cc - the GPU's kernels on a GPU made of a CPU (emu.h) or
 * on a real one: gradients against differences of what goes forward, and the scaler's
 * memory
 *
 * The gradient of L = sum of y * c, for fixed c, is what goes back with dy = c.
 */
#include "tests/worker/cuda/emu.h"
#include "worker/cuda/failure.h"
#include "worker/cuda/kernels.h"

extern "C" {
#include "worker/cuda/dnn_graph.h"
}

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

static cudaStream_t stream;
static int failures;

static void expect(bool good, const char *what, double is, double wanted)
{
    if (!good) {
        printf("FAILED %s: %g, wanted %g\n", what, is, wanted);
        failures++;
    }
}

/* An array on the device that the host reads and writes by copies. */
struct array {
    float *at;
    std::vector<float> host;
    explicit array(size_t n) : host(n)
    {
        cudaMalloc(reinterpret_cast<void **>(&at), n * sizeof(float));
    }
    ~array()
    {
        cudaFree(at);
    }
    void fill(unsigned seed)
    {
        for (float &v : host)
            v = float((seed = seed * 1664525 + 1013904223) >> 8) * 0x1p-23f - 1;
        send();
    }
    void send()
    {
        cudaMemcpy(at, host.data(), host.size() * sizeof(float), cudaMemcpyHostToDevice);
        cudaDeviceSynchronize(); /* our stream does not wait for it */
    }
    void fetch()
    {
        cudaStreamSynchronize(stream);
        cudaMemcpy(host.data(), at, host.size() * sizeof(float), cudaMemcpyDeviceToHost);
    }
};

/* L(x) by forward(), in double. */
static double value(array &y, const array &c, const std::function<void()> &forward)
{
    double sum = 0;
    forward();
    y.fetch();
    for (size_t i = 0; i < y.host.size(); i++)
        sum += double(y.host[i]) * double(c.host[i]);
    return sum;
}

/* Elements of `of` moved a little: is grad the slope? ./check.sh --all tries each, else
 * some 300 of many are tried. */
static void check_slope(const char *what, array &of, array &grad, array &y,
                        const array &c, const std::function<void()> &forward)
{
    const float step = 1e-2f;
    const bool each = getenv("DDP_TEST_LARGE") != nullptr;
    const size_t stride = each ? 1 : of.host.size() / 300 | 1; /* odd: of all columns */
    grad.fetch();
    for (size_t i = 0; i < of.host.size(); i += stride) {
        float was = of.host[i];
        of.host[i] = was + step;
        of.send();
        double up = value(y, c, forward);
        of.host[i] = was - step;
        of.send();
        double down = value(y, c, forward);
        of.host[i] = was;
        of.send();
        double slope = (up - down) / (2 * double(step));
        expect(fabs(slope - double(grad.host[i])) < 2e-3 * (1 + fabs(slope)), what,
               double(grad.host[i]), slope);
    }
}

/* Images of C channels: of 8 several are taken at once. */
static void norm(int C)
{
    struct cuda_map map = {CUDA_F32, 2, C, 2, C == 8 ? 2 : 3};
    size_t c = size_t(C), inner = size_t(map.H * map.W), n = 2 * c * inner;
    double count = double(2 * inner);
    array x(n), y(n), dy(n), dx(n), more(n), dmore(n), w(c), bias(c), dw(c), dbias(c),
        running(2 * c + 1), saved(4 * c), room(CUDA_ROOM);
    struct cuda_norm p = {map,     true,       1e-5f,    0.1f,   w.at,
                          bias.at, running.at, saved.at, room.at};
    x.fill(1);
    dy.fill(2);
    more.fill(3);
    w.fill(4);
    for (float &b : bias.host)
        b = 3; /* away from the ReLU's corner */
    bias.send();
    running.send();
    auto forward = [&] {
        cuda_norm_measure(&p, x.at, stream);
        cuda_norm(&p, x.at, more.at, true, y.at, stream);
    };
    forward();
    y.fetch();
    running.fetch();
    double mean = 0, square = 0;
    for (size_t b = 0; b < 2; b++)
        for (size_t i = 0; i < inner; i++) {
            double v = double(x.host[(b * inner + i) * c + 2]);
            mean += v / count;
            square += v * v / count;
        }
    double var = (square - mean * mean) * count / (count - 1);
    expect(fabs(double(running.host[2]) - 0.1 * mean) < 1e-6, "running mean",
           double(running.host[2]), 0.1 * mean);
    expect(fabs(double(running.host[c + 2]) - 0.1 * var) < 1e-6, "running variance",
           double(running.host[c + 2]), 0.1 * var);
    expect(running.host[2 * c] == 1, "batches seen", double(running.host[2 * c]), 1);
    std::vector<float> means(running.host.begin(), running.host.begin() + long(2 * c));
    float one = x.host[0];
    x.host[0] = NAN;
    x.send();
    forward();
    running.fetch();
    expect(running.host[0] == means[0] && running.host[c] == means[c], "kept",
           double(running.host[0]), double(means[0]));
    expect(running.host[1] != means[1], "moved", double(running.host[1]),
           double(means[1]));
    x.host[0] = one;
    x.send();
    forward();
    cuda_norm_back_measure(&p, x.at, y.at, dy.at, dw.at, dbias.at, stream);
    cuda_norm_back(&p, x.at, y.at, dy.at, dx.at, dmore.at, stream);
    check_slope("norm, x", x, dx, y, dy, forward);
    check_slope("norm, weight", w, dw, y, dy, forward);
    check_slope("norm, bias", bias, dbias, y, dy, forward);
    check_slope("norm, shortcut", more, dmore, y, dy, forward);
}

/* 4 x W, pooled or not. */
static void biased(int W, bool pool)
{
    struct cuda_map map = {CUDA_F32, 2, 3, 4, W};
    size_t n = 2 * 3 * 4 * size_t(W), out = pool ? 2 * 3 * 2 * size_t(W / 2) : n;
    array z(n), bias(3), y(out), dy(out), dz(n), dbias(3), room(CUDA_ROOM), arg(out);
    uint8_t *places = pool ? reinterpret_cast<uint8_t *>(arg.at) : nullptr;
    /* no two within a step of each other, and none near the corner */
    for (size_t i = 0; i < z.host.size(); i++)
        z.host[i] = float(i * 37 % 120) * 0.05f - 2.51f;
    z.send();
    bias.send();
    dy.fill(5);
    auto forward = [&] { cuda_bias_relu(z.at, bias.at, map, y.at, places, stream); };
    forward();
    cuda_bias_relu_back(y.at, dy.at, places, 1, map, dz.at, room.at, dbias.at, stream);
    check_slope("bias and ReLU, z", z, dz, y, dy, forward);
    check_slope("bias and ReLU, bias", bias, dbias, y, dy, forward);
}

/* Many numbers to a channel, so that there are parts to be added up. */
static void sums(struct cuda_map map)
{
    size_t C = size_t(map.C), inner = size_t(map.H * map.W),
           n = size_t(map.n) * C * inner;
    array y(n), dy(n), room(CUDA_ROOM), told(C);
    std::vector<double> wanted(C);
    y.fill(9);
    dy.fill(10);
    for (size_t i = 0; i < n; i++)
        if (y.host[i] > 0)
            wanted[i % C] += 2 * double(dy.host[i]);
    cuda_bias_relu_back(y.at, dy.at, nullptr, 2, map, dy.at, room.at, told.at, stream);
    told.fetch();
    for (size_t c = 0; c < C; c++)
        expect(fabs(double(told.host[c]) - wanted[c]) < 1e-2, "a sum of many",
               double(told.host[c]), wanted[c]);
    std::vector<float> before = dy.host;
    dy.fetch();
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++)
        wrong += dy.host[i] != (y.host[i] > 0 ? 2 * before[i] : 0);
    expect(wrong == 0, "masked elements", double(wrong), 0);
}

static void means()
{
    struct cuda_map map = {CUDA_F32, 2, 3, 4, 4};
    array x(96), y(6), dy(6), dx(96);
    x.fill(7);
    dy.fill(8);
    auto forward = [&] { cuda_mean(x.at, map, y.at, stream); };
    forward();
    cuda_mean_back(dy.at, map, dx.at, stream);
    check_slope("mean of images", x, dx, y, dy, forward);
}

/* Layers of tokens; C of 8 takes several at once. `add`: dx is added to what is there. */
/* With `rms` there is no bias. */
static void row_norm(int samples, int T, int C, bool add, bool rms)
{
    struct cuda_map rows = {CUDA_F32, samples, C, T, 1};
    size_t c = size_t(C), tokens = size_t(samples * T), n = tokens * c;
    array x(n), y(n), dy(n), dx(n), w(c), bias(c), dw(c), dbias(c), kept(2 * tokens),
        room(CUDA_ROOM);
    struct cuda_row_norm p = {rows,  w.at, rms ? nullptr : bias.at, kept.at, room.at,
                              1e-5f, rms};
    x.fill(12);
    dy.fill(13);
    w.fill(14);
    bias.fill(15);
    dx.fill(16);
    std::vector<float> before = dx.host;
    auto forward = [&] { cuda_row_norm(&p, x.at, y.at, stream); };
    forward();
    cuda_row_norm_back(&p, x.at, dy.at, dw.at, rms ? nullptr : dbias.at, dx.at, add,
                       stream);
    dx.fetch();
    for (size_t i = 0; add && i < n; i++)
        dx.host[i] -= before[i];
    dx.send();
    check_slope("norm of rows, x", x, dx, y, dy, forward);
    check_slope("norm of rows, weight", w, dw, y, dy, forward);
    if (!rms)
        check_slope("norm of rows, bias", bias, dbias, y, dy, forward);
}

static void activation(int rows, int C, float cubic, bool gated)
{
    struct cuda_map map = {CUDA_F32, 1, C, rows, 1};
    struct activation f = {cubic > 0 ? 1.6f : 1, cubic, C, gated};
    size_t n = size_t(rows * C), given = gated ? 2 * n : n;
    array x(given), y(n), dy(n), dx(given);
    x.fill(17);
    for (float &v : x.host)
        v *= 4;
    x.send();
    dy.fill(18);
    auto forward = [&] { cuda_activation(map, f, x.at, nullptr, y.at, stream); };
    cuda_activation(map, f, x.at, dy.at, dx.at, stream);
    check_slope("activation", x, dx, y, dy, forward);
}

/* Tokens that come again, also far behind; the gradient is added to what is there. */
static void embed(int n, int T)
{
    enum { V = 4, C = 3 };
    struct cuda_map rows = {CUDA_F32, n, C, T, 1};
    size_t all = size_t(n * T * C);
    array of(V * C), at(size_t(T * C)), y(all), dy(all), dof(V * C), dat(size_t(T * C)),
        tokens(size_t(n * (T + 1)));
    for (size_t i = 0; i < tokens.host.size(); i++) {
        uint32_t token = uint32_t(i * i * 7 + i / 3) % V;
        memcpy(&tokens.host[i], &token, sizeof token);
    }
    tokens.send();
    of.fill(19);
    at.fill(20);
    dy.fill(21);
    dof.host.assign(V * C, 2);
    dof.send();
    auto *t = reinterpret_cast<const uint32_t *>(tokens.at);
    auto forward = [&] { cuda_embed(t, of.at, at.at, rows, y.at, stream); };
    cuda_embed_back(t, dy.at, rows, dof.at, dat.at, stream);
    dof.fetch();
    for (float &v : dof.host)
        v -= 2;
    dof.send();
    check_slope("embedding, tokens", of, dof, y, dy, forward);
    check_slope("embedding, places", at, dat, y, dy, forward);
}

/* With dropout of 0.3 if `step` says of which. */
static void attention(int n, int T, int heads, int kv_heads, int D,
                      const struct cuda_step *step = nullptr)
{
    struct cuda_attention a = {CUDA_F32, n, T, heads, kv_heads, D, 0.3f, step, 1, 2, 64};
    size_t rows = size_t(n * T * heads), all = rows * size_t(D);
    size_t given = size_t(n * T * (heads + 2 * kv_heads) * D);
    array qkv(given), y(all), dy(all), dqkv(given), lse(rows), room(rows);
    qkv.fill(22);
    for (float &v : qkv.host)
        v *= 2;
    qkv.send();
    dy.fill(23);
    auto forward = [&] { cuda_attention(a, qkv.at, y.at, lse.at, stream); };
    forward();
    cuda_attention_back(a, qkv.at, y.at, lse.at, dy.at, dqkv.at, room.at, stream);
    check_slope("attention", qkv, dqkv, y, dy, forward);
}

static void expect_near(const char *what, array &is, array &wanted)
{
    double most = 0, off = 0;
    is.fetch();
    wanted.fetch();
    for (size_t i = 0; i < is.host.size(); i++) {
        most = fmax(most, fabs(wanted.host[i]));
        off = fmax(off, fabs(is.host[i] - wanted.host[i]));
    }
    expect(off < 0.02 * most, what, off, 0.02 * most);
}

/* The first of cuDNN's plans that is built. */
static bool plan_of(cudnnHandle_t dnn, const struct cuda_attention &a, bool back,
                    bool deterministic, struct dnn_graph **graph,
                    cudnnBackendDescriptor_t *plan)
{
    int rc = 0;
    *graph = attention_graph_make(dnn, &a, back, deterministic);
    for (int place = 0; rc == 0; place++)
        rc = dnn_graph_plan(*graph, dnn, place, 1 << 24, plan);
    return rc > 0;
}

/* cuDNN's attention in bf16 beside our kernels'. */
static void cudnn_attention(int n, int T, int heads, int kv_heads, int D,
                            bool deterministic)
{
    struct cuda_attention a = {CUDA_BF16, n, T, heads, kv_heads, D};
    size_t rows = size_t(n * T * heads), all = rows * size_t(D);
    size_t given = size_t(n * T * (heads + 2 * kv_heads) * D);
    array x(given), qkv(given), y(all), dy(all), dqkv(given), lse(rows), dots(rows);
    array y2(all), dqkv2(given), lse2(rows), sums(all), wide(given), wide2(given);
    array workspace(1 << 22);
    cudnnHandle_t dnn;
    cudnnCreate(&dnn);
    cudnnSetStream(dnn, stream);
    x.fill(27);
    for (float &v : x.host)
        v *= 2;
    x.send();
    cuda_narrow(x.at, int64_t(given), CUDA_BF16, qkv.at, stream);
    sums.fill(28);
    cuda_narrow(sums.at, int64_t(all), CUDA_BF16, dy.at, stream);
    cuda_attention(a, qkv.at, y.at, lse.at, stream);
    cuda_attention_back(a, qkv.at, y.at, lse.at, dy.at, dqkv.at, dots.at, stream);
    for (int back = 0; back < 2; back++) {
        struct attention_memory m = {qkv.at,
                                     y2.at,
                                     lse2.at,
                                     back ? dy.at : nullptr,
                                     dqkv2.at,
                                     dots.at,
                                     deterministic ? nullptr : sums.at};
        struct dnn_graph *graph;
        cudnnBackendDescriptor_t plan;
        bool planned = plan_of(dnn, a, back > 0, deterministic, &graph, &plan);
        if (planned)
            attention_graph_play(plan, dnn, &a, &m, workspace.at);
        expect(planned && cuda_outcome(nullptr) == 0, "cuDNN's attention", back, back);
        cudaStreamSynchronize(stream);
        dnn_graph_free(graph);
    }
    cuda_widen(y.at, int64_t(all), CUDA_BF16, wide.at, stream);
    cuda_widen(y2.at, int64_t(all), CUDA_BF16, wide2.at, stream);
    wide.host.resize(all);
    wide2.host.resize(all);
    expect_near("cuDNN's attention, y", wide2, wide);
    expect_near("cuDNN's attention, logarithms", lse2, lse);
    wide.host.resize(given);
    wide2.host.resize(given);
    cuda_widen(dqkv.at, int64_t(given), CUDA_BF16, wide.at, stream);
    cuda_widen(dqkv2.at, int64_t(given), CUDA_BF16, wide2.at, stream);
    expect_near("cuDNN's attention, gradients", wide2, wide);
    cudnnDestroy(dnn);
}

static void rotary(int n, int T, int heads, int kv_heads, int D)
{
    struct cuda_attention a = {CUDA_F32, n, T, heads, kv_heads, D};
    size_t all = size_t(n * T * (heads + 2 * kv_heads) * D);
    array x(all), y(all), dy(all), dx(all), turns(size_t(T * D));
    x.fill(24);
    dy.fill(25);
    turns.fill(26);
    auto forward = [&] { cuda_rotary(a, turns.at, x.at, y.at, false, stream); };
    cuda_rotary(a, turns.at, dy.at, dx.at, true, stream);
    check_slope("rotary positions", x, dx, y, dy, forward);
}

/* In two pieces; the loss is what all rows say. T 0: of images. */
static void class_loss(int samples, int T, int K, float smooth)
{
    const int rows = samples * (T ? T : 1), first = rows * 2 / 3;
    size_t k = size_t(K), all = size_t(rows) * k;
    array logits(all), grads(all), tokens(size_t(samples * (T + 1))),
        losses(size_t(2 * rows)), verdict(2 * CUDA_HEAD), own(2 * CUDA_HEAD),
        steps(sizeof(struct cuda_step) / 4 + 1);
    struct cuda_step s = {};
    s.share = 1;
    s.mine = samples;
    memcpy(steps.host.data(), &s, sizeof s);
    steps.send();
    logits.fill(24);
    for (float &v : logits.host)
        v *= 5;
    logits.send();
    for (size_t i = 0; i < tokens.host.size(); i++) {
        uint32_t token = uint32_t(K) - 1 - uint32_t(i * 2) % uint32_t(K);
        memcpy(&tokens.host[i], &token, sizeof token);
    }
    tokens.send();
    auto *t = reinterpret_cast<const uint32_t *>(tokens.at);
    struct cuda_loss l = {reinterpret_cast<const struct cuda_step *>(steps.at),
                          0,
                          samples,
                          K,
                          smooth,
                          CUDA_F32,
                          nullptr,
                          reinterpret_cast<struct cuda_verdict *>(verdict.at)};
    auto forward = [&](float *into) {
        for (int from = 0, n = first; from < rows; from += n, n = rows - first)
            cuda_class_loss(&l, logits.at + size_t(from) * k, t, T, from, n,
                            into ? into + size_t(from) * k : nullptr, losses.at, stream);
        cuda_class_losses(&l, losses.at, T, stream);
    };
    own.host[1] = 1; /* of the verdict's numbers, of which not all are written */
    verdict.send();
    forward(grads.at);
    check_slope("loss of classes", logits, grads, verdict, own,
                [&] { forward(nullptr); });
}

/* Of several logits that are the largest, the first is what the model says. A loss that
 * is nearly none is not lost beside 1. */
static void ties_and_small_losses()
{
    const int K = 300;
    array logits(3 * size_t(K)), labels(3), losses(6), verdict(2 * CUDA_HEAD);
    logits.host.assign(logits.host.size(), 1.0f);
    logits.host[0] = logits.host[size_t(K)] = logits.host[2 * size_t(K)] = 0;
    logits.send();
    const uint32_t of[] = {1, 2, 271};
    memcpy(labels.host.data(), of, sizeof of);
    labels.send();
    struct cuda_loss l = {
        nullptr, 0,        3,       K,
        0,       CUDA_F32, nullptr, reinterpret_cast<struct cuda_verdict *>(verdict.at)};
    cuda_class_loss(&l, logits.at, reinterpret_cast<uint32_t *>(labels.at), 0, 0, 3,
                    nullptr, losses.at, stream);
    losses.fetch();
    for (size_t i = 0; i < 3; i++)
        expect(losses.host[2 * i + 1] == (i == 0 ? 1.0f : 0.0f), "the first of ties",
               double(losses.host[2 * i + 1]), i == 0);
    logits.host[0] = 21;
    logits.host[1] = 22;
    logits.host[K + 2] = 21;
    logits.send();
    cuda_class_loss(&l, logits.at, reinterpret_cast<uint32_t *>(labels.at), 0, 0, 2,
                    nullptr, losses.at, stream);
    losses.fetch();
    double wanted[] = {log1p(exp(-1) + 298 * exp(-21)), log1p(exp(-21) + 298 * exp(-20))};
    for (size_t i = 0; i < 2; i++)
        expect(fabs(double(losses.host[2 * i]) - wanted[i]) < 1e-6 * wanted[i],
               "a small loss", double(losses.host[2 * i]), wanted[i]);
}

/* To another type, and back: what fits in bf16 is the same. */
static void types(enum cuda_type type)
{
    array w(300), back(300), narrow(300);
    for (size_t i = 0; i < w.host.size(); i++)
        w.host[i] = float(i % 200);
    w.send();
    cuda_narrow(w.at, 300, type, narrow.at, stream);
    cuda_widen(narrow.at, 300, type, back.at, stream);
    back.fetch();
    for (size_t i = 0; i < w.host.size(); i++)
        expect(back.host[i] == w.host[i], "a weight there and back", double(back.host[i]),
               double(w.host[i]));
}

/* Halved by an infinite gradient, doubled after CUDA_GROW good steps, never skipped for a
 * loss that is itself not a number. */
static void scaler()
{
    array verdict(2 * CUDA_HEAD), result(CUDA_HEAD + 2), g(4), state(2), updates(2),
        parts(2 * CUDA_PARTS);
    auto *v = reinterpret_cast<struct cuda_verdict *>(verdict.at);
    float *head = &verdict.host[CUDA_HEAD];
    auto *s = reinterpret_cast<struct cuda_scaler *>(state.at);
    auto *sums = reinterpret_cast<double *>(parts.at);
    auto step = [&](float gradient, float bad) {
        std::fill(verdict.host.begin(), verdict.host.end(), 0.0f);
        head[2] = bad;
        verdict.send();
        g.host.assign(4, gradient);
        g.send();
        cuda_squares(g.at, 4, false, sums, stream);
        cuda_judge(sums, 1, 0, s, v, stream);
        cuda_finish(v, false, s, reinterpret_cast<struct cuda_result *>(result.at),
                    reinterpret_cast<uint64_t *>(updates.at), stream);
        verdict.fetch();
        state.fetch();
    };
    updates.send();
    state.host[0] = 1024; /* and no good steps: bits of 0 */
    state.send();
    step(INFINITY, 0);
    expect(state.host[0] == 512, "halved", double(state.host[0]), 512);
    expect(head[6] == 1 && head[2] == 0, "skipped, not bad", double(head[6]), 1);
    step(NAN, 1);
    expect(state.host[0] == 512 && head[6] == 0, "a bad loss", double(state.host[0]),
           512);
    step(1, 0);
    for (int i = 1; i < CUDA_GROW; i++)
        cuda_finish(v, false, s, reinterpret_cast<struct cuda_result *>(result.at),
                    reinterpret_cast<uint64_t *>(updates.at), stream);
    state.fetch();
    expect(state.host[0] == 1024, "doubled", double(state.host[0]), 1024);
    expect(verdict.host[0] == 1.0f / 512, "undone", double(verdict.host[0]), 1.0 / 512);
    uint64_t taken;
    updates.fetch();
    memcpy(&taken, updates.host.data(), sizeof taken);
    expect(taken == CUDA_GROW, "updates", double(taken), CUDA_GROW);
    state.host = {1, 0};
    state.send();
    step(INFINITY, 0);
    expect(head[2] == 1, "no smaller than one: bad", double(head[2]), 1);
}

/* Squares beyond the range of floats. */
static void extremes()
{
    array g(1003), parts(2 * CUDA_PARTS);
    for (float each : {1e25f, 3.0f, 1e-25f, 0.0f}) {
        double sum = 0, part;
        g.host.assign(g.host.size(), each);
        g.send();
        cuda_squares(g.at, 1003, false, reinterpret_cast<double *>(parts.at), stream);
        parts.fetch();
        for (size_t i = 0; i < CUDA_PARTS; i++) {
            memcpy(&part, &parts.host[2 * i], sizeof part);
            sum += part;
        }
        double wanted = 1003 * double(each) * double(each);
        expect(fabs(sum - wanted) <= 1e-6 * wanted, "squares", sum, wanted);
    }
}

/* After the first failure of a phase no call is made and no kernel launched, until it has
 * been asked for. */
static void failed_phase()
{
    struct ddp_err err = {""};
    array y(4);
    int calls = 0;
    y.fill(1);
    float before = y.host[0];
    cuda_doing("'%s' %s", "conv1", "forward");
    bool fine = CUDA((calls++, cudaSuccess)) && !CUDA(cudaErrorNoDevice);
    cuda_doing("later");
    fine = fine && !CUDA((calls++, cudaSuccess)) && !cuda_note(cudaErrorInvalidDevice);
    cuda_scale(y.at, 4, 2, y.at, stream);
    y.fetch();
    expect(fine && calls == 1 && y.host[0] == before, "nothing is done after a failure",
           calls, 1);
    fine = cuda_outcome(&err) < 0 && cuda_outcome(nullptr) == 0 &&
           !strcmp(err.text, "'conv1' forward: no CUDA-capable device is detected");
    expect(fine, err.text, 0, 0);
    cuda_scale(y.at, 4, 2, y.at, stream);
    y.fetch();
    expect(y.host[0] == 2 * before, "a phase after one that failed", y.host[0],
           2 * before);
}

int main()
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("skipped: the driver finds no GPU; needs gpu\n");
        return 77;
    }
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    norm(5);
    norm(8);
    norm(300);
    means();
    biased(5, true);
    biased(6, true);
    biased(2, false);
    for (bool rms : {false, true}) {
        row_norm(3, 7, 5, false, rms);
        row_norm(3, 7, 8, true, rms);
        row_norm(1, 5, 300, false, rms); /* each thread of a row takes several */
        activation(7, 11, 0.07f, rms);
        activation(8, 8, 0.07f, rms);
        activation(3, 5, 0, rms);
    }
    embed(2, 5);
    embed(3, 150);
    attention(2, 5, 3, 3, 4);
    attention(1, 70, 1, 1, 2);
    attention(1, 3, 1, 1, 40);
    attention(1, 3, 1, 1, 70);
    attention(2, 70, 4, 2, 2);
    struct cuda_step step = {};
    step.seed = 5;
    attention(2, 70, 3, 1, 2, &step);
    struct cudaDeviceProp device;
    cudaGetDeviceProperties(&device, 0);
    /* else our kernels do it */
    for (int i = 0; i < 2 && device.major >= 8 && cudnnGetVersion() >= 91000; i++) {
        cudnn_attention(2, 70, 4, 2, 16, i > 0);
        cudnn_attention(1, 33, 3, 3, 64, i > 0);
    }
    rotary(2, 5, 3, 1, 6);
    class_loss(2, 3, 7, 0.3f);
    class_loss(5, 0, 9, 0.1f);
    class_loss(1, 2, 260, 0); /* more than a block's threads take at once */
    ties_and_small_losses();
    sums({CUDA_F32, 20000, 8, 1, 1});
    sums({CUDA_F32, 20000, 10, 1, 1});
    sums({CUDA_F32, 5000, 4, 2, 2}); /* one thread has all channels of a position */
    sums({CUDA_F32, 12, 2, 64, 64});
    types(CUDA_BF16);
    types(CUDA_F16);
    scaler();
    extremes();
    failed_phase();
    printf("%s\n", failures ? "FAILED" : "ok");
    return failures ? 1 : 0;
}
