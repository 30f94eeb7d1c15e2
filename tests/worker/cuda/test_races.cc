/* tests/worker/cuda/test_races.cc - every kernel in many shapes, looked at (emu_check.h):
 * no races, nothing touched outside of arrays that are as large as they have to be, or
 * read before it was written; and the same bits in any order of threads and blocks
 *
 * The formulas are test_kernels.cc's. DDP_RACES=long: and what has more elements than
 * blocks take at once.
 */
#include "tests/worker/cuda/emu.h"
#include "tests/worker/cuda/emu_check.h"
#include "worker/cuda/failure.h"
#include "worker/cuda/kernels.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

static cudaStream_t stream;
static int failures, cases;
enum { TURNS = 2 };

static size_t size_of(enum cuda_type type)
{
    return type == CUDA_F32 ? 4 : 2;
}

static size_t elements(const struct cuda_map &m)
{
    return size_t(m.n) * size_t(m.C) * size_t(m.H) * size_t(m.W);
}

/* The arrays of one run, and their bits once it is over. */
struct run {
    std::vector<std::pair<void *, size_t>> all;
    uint32_t seed = 1;

    void *room(size_t bytes)
    {
        void *p;
        cudaMalloc(&p, bytes);
        all.push_back({p, bytes});
        return p;
    }
    void *with(const void *host, size_t bytes)
    {
        void *p = room(bytes);
        cudaMemcpy(p, host, bytes, cudaMemcpyHostToDevice);
        cudaDeviceSynchronize();
        return p;
    }
    /* Its addresses are other ones in each run. */
    const struct cuda_step *step(const struct cuda_step &s)
    {
        auto *p = static_cast<struct cuda_step *>(with(&s, sizeof s));
        all.back().second = 0;
        return p;
    }
    void *zeros(size_t bytes)
    {
        return with(std::vector<char>(bytes).data(), bytes);
    }
    float next()
    {
        return float((seed = seed * 1664525 + 1013904223) >> 8) * 0x1p-23f - 1;
    }
    /* n numbers from -1 to 1. */
    void *numbers(size_t n, enum cuda_type type)
    {
        std::vector<float> wide(n);
        std::vector<uint16_t> narrow(n);
        for (size_t i = 0; i < n; i++) {
            wide[i] = next();
            __half half = __float2half_rn(wide[i]);
            __nv_bfloat16 brain = __float2bfloat16_rn(wide[i]);
            memcpy(&narrow[i], type == CUDA_F16 ? (void *)&half : (void *)&brain, 2);
        }
        return type == CUDA_F32 ? with(wide.data(), n * 4) : with(narrow.data(), n * 2);
    }
    float *floats(size_t n)
    {
        return static_cast<float *>(numbers(n, CUDA_F32));
    }
    float *sums()
    {
        return static_cast<float *>(room(CUDA_ROOM * sizeof(float)));
    }
    std::vector<uint8_t> end()
    {
        std::vector<uint8_t> bits;
        cudaStreamSynchronize(stream);
        for (auto &a : all) {
            std::vector<uint8_t> some(a.second);
            cudaMemcpy(some.data(), a.first, a.second, cudaMemcpyDeviceToHost);
            bits.insert(bits.end(), some.begin(), some.end());
            cudaFree(a.first);
        }
        return bits;
    }
};

static void check(const char *name, const std::function<void(run &)> &what)
{
    std::vector<uint8_t> first;
    cases++;
    for (int turn = 0; turn < TURNS; turn++) {
        std::vector<std::string> faults;
        run r;
        emu_collect(&faults);
        cuda_doing("%s", name);
        what(r);
        std::vector<uint8_t> bits = r.end();
        emu_collect(nullptr);
        for (const std::string &f : faults)
            printf("FAILED %s: %s\n", name, f.c_str());
        if (turn == 0)
            first = bits;
        else if (bits != first)
            printf("FAILED %s: other bits in another order\n", name);
        failures += !faults.empty() || (turn > 0 && bits != first);
        struct ddp_err err;
        if (cuda_outcome(&err) < 0) {
            failures++;
            printf("FAILED %s\n", err.text);
        }
    }
}

/* ---- images ---- */

static std::string name_of(const char *what, const struct cuda_map &m, int more)
{
    char text[120];
    snprintf(text, sizeof text, "%s [%d,%d,%d,%d] type %d, %d", what, m.n, m.C, m.H, m.W,
             int(m.type), more);
    return text;
}

static void biased(const struct cuda_map &m, bool pool)
{
    struct cuda_map out = m;
    out.H /= pool ? 2 : 1;
    out.W /= pool ? 2 : 1;
    size_t n = elements(out);
    if (n == 0)
        return;
    check(name_of("bias and ReLU", m, pool).c_str(), [=](run &r) {
        void *z = r.numbers(elements(m), m.type), *y = r.room(n * size_of(m.type));
        float *bias = r.floats(size_t(m.C));
        uint8_t *arg = pool ? static_cast<uint8_t *>(r.room(n)) : nullptr;
        cuda_bias_relu(z, bias, m, y, arg, stream);
        void *dy = r.numbers(n, m.type), *dz = r.room(elements(m) * size_of(m.type));
        float *room = r.sums(), *sums = static_cast<float *>(r.room(size_t(m.C) * 4));
        cuda_bias_relu_back(y, dy, arg, 0.5f, m, dz, room, sums, stream);
    });
}

static void masked(const struct cuda_map &m)
{
    for (bool plain : {false, true})
        check(name_of("mask and sum", m, plain).c_str(), [=](run &r) {
            void *y = r.numbers(elements(m), m.type),
                 *dy = r.numbers(elements(m), m.type);
            float *room = r.sums(), *sums = static_cast<float *>(r.room(size_t(m.C) * 4));
            cuda_bias_relu_back(plain ? nullptr : y, dy, nullptr, 2, m,
                                plain ? nullptr : dy, room, sums, stream);
        });
}

static void means(const struct cuda_map &m)
{
    check(name_of("means", m, 0).c_str(), [=](run &r) {
        void *x = r.numbers(elements(m), m.type);
        void *y = r.room(size_t(m.n * m.C) * size_of(m.type));
        cuda_mean(x, m, y, stream);
        cuda_mean_back(y, m, x, stream);
    });
}

enum { LEARN = 1, SHARED = 2, SHORTCUT = 4, RELU = 8 };
static void norm(const struct cuda_map &m, int how)
{
    check(name_of("norm", m, how).c_str(), [=](run &r) {
        size_t n = elements(m), c = size_t(m.C), bytes = n * size_of(m.type);
        bool learn = how & LEARN, shares = how & SHARED && learn;
        void *x = r.numbers(n, m.type), *y = r.room(bytes), *dy = r.numbers(n, m.type);
        void *more = how & SHORTCUT ? r.numbers(n, m.type) : nullptr;
        void *dx = r.room(bytes), *dmore = more ? r.room(bytes) : nullptr;
        float *running = static_cast<float *>(r.zeros((2 * c + 1) * 4));
        float *dw = static_cast<float *>(r.room(c * 4));
        float *dbias = static_cast<float *>(r.room(c * 4));
        double *shared =
            shares ? static_cast<double *>(r.room((2 * c + 1) * 8)) : nullptr;
        struct cuda_norm p = {m,           (how & RELU) != 0,
                              1e-5f,       0.1f,
                              r.floats(c), r.floats(c),
                              running,     static_cast<float *>(r.room(4 * c * 4)),
                              r.sums(),    shared};
        if (learn)
            cuda_norm_measure(&p, x, stream);
        cuda_norm(&p, x, more, learn, y, stream);
        if (!learn)
            return;
        cuda_norm_back_measure(&p, x, y, dy, dw, dbias, stream);
        cuda_norm_back(&p, x, y, dy, dx, dmore, stream);
    });
}

static void images(struct cuda_map m)
{
    for (int type = CUDA_F32; type <= CUDA_F16; type++) {
        m.type = (enum cuda_type)type;
        for (bool pool : {false, true})
            biased(m, pool);
        masked(m);
        means(m);
        norm(m, LEARN | RELU | SHORTCUT);
        norm(m, LEARN | SHARED);
        norm(m, RELU);
    }
}

/* ---- samples and weights ---- */

static void batches(struct cuda_map m)
{
    enum { SAMPLES = 9, FROM = 2 };
    size_t each = size_t(m.C * m.H * m.W), n = elements(m);
    for (int how = 0; how < 8; how++)
        check(name_of("images", m, how).c_str(), [=](run &r) {
            std::vector<uint32_t> numbers(size_t(FROM + m.n));
            for (size_t i = 0; i < numbers.size(); i++)
                numbers[i] = uint32_t(i * 5 % SAMPLES);
            bool in_order = how & 1, moves = how & 2, floats = how & 4;
            size_t there = in_order ? numbers.size() : SAMPLES;
            std::vector<uint8_t> bytes(there * each * 4, 7);
            struct cuda_step s = {};
            s.in_order = in_order;
            s.x = r.with(bytes.data(), there * each * (floats ? 4 : 1));
            s.t = r.with(bytes.data(), there * 4);
            auto *which = static_cast<uint32_t *>(
                r.with(numbers.data(), numbers.size() * sizeof(uint32_t)));
            struct augment moved = {moves ? 2 : 0, moves, 0};
            float *as_float = floats ? nullptr : r.floats(size_t(m.C) * 256);
            void *x = r.room(n * size_of(m.type));
            cuda_gather_images(r.step(s), which, FROM, m, moved, as_float, x,
                               static_cast<uint32_t *>(r.room(size_t(m.n) * 4)), stream);
        });
}

static void rows(int n, int len, int outputs, enum cuda_type type)
{
    check("rows", [=](run &r) {
        std::vector<uint32_t> numbers(size_t(n + 1));
        for (size_t i = 0; i < numbers.size(); i++)
            numbers[i] = uint32_t(i * 5 % 9);
        struct cuda_step s = {};
        s.x = r.floats(size_t(9 * len));
        s.t = r.floats(size_t(9 * outputs));
        auto *which = static_cast<uint32_t *>(
            r.with(numbers.data(), numbers.size() * sizeof(uint32_t)));
        cuda_gather_floats(r.step(s), which, 1, n, len, outputs, type,
                           r.room(size_t(n * len) * size_of(type)),
                           static_cast<float *>(r.room(size_t(n * outputs) * 4)), stream);
    });
}

static void types(int64_t n, enum cuda_type type)
{
    check("types", [=](run &r) {
        void *narrow = r.room(size_t(n) * size_of(type));
        cuda_narrow(r.floats(size_t(n)), n, type, narrow, stream);
        cuda_add(narrow, narrow, n, type, stream);
        cuda_widen(narrow, n, type, static_cast<float *>(r.room(size_t(n) * 4)), stream);
    });
}

/* ---- tokens ---- */

static uint32_t *tokens_of(run &r, int n, int T, int V)
{
    std::vector<uint32_t> tokens(size_t(n * (T + 1)));
    for (size_t i = 0; i < tokens.size(); i++)
        tokens[i] = uint32_t(i * i * 7 + i / 3) % uint32_t(V);
    return static_cast<uint32_t *>(r.with(tokens.data(), tokens.size() * 4));
}

static void sequences(int n, int T, int C, enum cuda_type type)
{
    struct cuda_map rows = {type, n, C, T, 1};
    size_t c = size_t(C), all = size_t(n * T) * c, bytes = all * size_of(type);
    check("embeddings", [=](run &r) {
        struct cuda_step s = {};
        s.x = tokens_of(r, n + 1, T, 5);
        auto *tokens = static_cast<uint32_t *>(r.room(size_t(n * (T + 1)) * 4));
        cuda_gather_tokens(r.step(s), 1, n, T, tokens, stream);
        cuda_embed(tokens, r.floats(5 * c), r.floats(size_t(T) * c), rows, r.room(bytes),
                   stream);
        cuda_embed_back(tokens, r.numbers(all, type), rows, r.floats(5 * c),
                        static_cast<float *>(r.room(size_t(T) * c * 4)), stream);
    });
    for (bool add : {false, true})
        check("norms of rows", [=](run &r) {
            void *x = r.numbers(all, type), *y = r.room(bytes);
            float *dw = static_cast<float *>(r.room(c * 4));
            float *dbias = static_cast<float *>(r.room(c * 4));
            struct cuda_row_norm p = {rows,
                                      r.floats(c),
                                      add ? nullptr : r.floats(c),
                                      static_cast<float *>(r.room(2 * size_t(n * T) * 4)),
                                      r.sums(),
                                      1e-5f,
                                      add};
            cuda_row_norm(&p, x, y, stream);
            cuda_row_norm_back(&p, x, r.numbers(all, type), dw, add ? nullptr : dbias,
                               add ? r.numbers(all, type) : r.room(bytes), add, stream);
        });
    check("GELU and a sum", [=](run &r) {
        void *x = r.numbers(all, type), *y = r.room(bytes), *dx = r.room(bytes);
        struct activation gelu = {1.6f, 0.07f, C, false};
        cuda_activation(rows, gelu, x, nullptr, y, stream);
        cuda_activation(rows, gelu, x, y, dx, stream);
        cuda_add(y, dx, int64_t(all), type, stream);
    });
    check("gated SiLU", [=](run &r) {
        struct activation silu = {1, 0, C, true};
        void *x = r.numbers(2 * all, type), *y = r.room(bytes), *dx = r.room(2 * bytes);
        cuda_activation(rows, silu, x, nullptr, y, stream);
        cuda_activation(rows, silu, x, y, dx, stream);
    });
}

static void attention(int n, int T, int heads, int kv_heads, int D, enum cuda_type type)
{
    struct cuda_attention shape = {type, n, T, heads, kv_heads, D};
    size_t rows = size_t(n * T * heads), all = rows * size_t(D);
    size_t given = size_t(n * T * (heads + 2 * kv_heads) * D);
    check("attention", [=](run &r) {
        struct cuda_attention a = shape;
        struct cuda_step s = {};
        if (kv_heads < heads) {
            a.dropout = 0.3f;
            a.s = r.step(s);
        }
        void *qkv = r.numbers(given, type), *y = r.room(all * size_of(type));
        float *lse = static_cast<float *>(r.room(rows * 4));
        cuda_attention(a, qkv, y, lse, stream);
        cuda_attention_back(a, qkv, y, lse, r.numbers(all, type),
                            r.room(given * size_of(type)),
                            static_cast<float *>(r.room(rows * 4)), stream);
        if (D % 2 == 0)
            cuda_rotary(shape, r.floats(size_t(T * D)), qkv,
                        r.room(given * size_of(type)), false, stream);
    });
}

/* In place in float, as the engine does. */
static void token_losses(int n, int T, int K, enum cuda_type type)
{
    check("loss of tokens", [=](run &r) {
        struct cuda_step s = {0.1f, 0.5f};
        s.mine = n;
        size_t all = size_t(n * T) * size_t(K);
        float *logits = r.floats(all);
        void *grads = type == CUDA_F32 ? logits : r.room(all * size_of(type));
        float *losses = static_cast<float *>(r.room(2 * size_t(n * T) * 4));
        auto *verdict =
            static_cast<struct cuda_verdict *>(r.zeros(sizeof(struct cuda_verdict)));
        struct cuda_loss l = {r.step(s), 0, n, K, 0.1f, type, nullptr, verdict};
        cuda_class_loss(&l, logits, tokens_of(r, n, T, K), T, 0, n * T, grads, losses,
                        stream);
        cuda_class_losses(&l, losses, T, stream);
    });
}

/* ---- losses and optimisers ---- */

static void dropout(const struct cuda_map &m)
{
    check("dropout", [=](run &r) {
        struct cuda_step s = {};
        cuda_dropout(r.numbers(elements(m), m.type), m, 0.4f, r.step(s), 1, 2, 3, stream);
    });
}

static void losses(int n, int K, enum cuda_type type)
{
    check("losses", [=](run &r) {
        struct cuda_step s = {0.1f, 0.5f};
        s.mine = 2 * n;
        std::vector<uint32_t> labels(size_t(n), uint32_t(K - 1));
        float *logits = r.floats(size_t(n * K)), *targets = r.floats(size_t(n * K));
        struct cuda_scaler scaler = {1024, 0};
        auto *scale = static_cast<struct cuda_scaler *>(r.with(&scaler, sizeof scaler));
        auto *verdict =
            static_cast<struct cuda_verdict *>(r.zeros(sizeof(struct cuda_verdict)));
        float *losses = static_cast<float *>(r.room(size_t(n) * 8));
        void *dy = r.room(size_t(n * K) * size_of(type));
        auto *right = static_cast<uint32_t *>(r.with(labels.data(), labels.size() * 4));
        struct cuda_loss l = {r.step(s), 0, n, K, 0.1f, type, scale, verdict};
        cuda_class_loss(&l, logits, right, 0, 0, n, dy, losses, stream);
        cuda_class_losses(&l, losses, 0, stream);
        l.batch = 1;
        cuda_mse_loss(&l, logits, targets, dy, stream);
        float nothing = 0;
        auto *found = static_cast<float *>(r.with(&nothing, 4));
        std::vector<float> bad(size_t(n * K), NAN); /* as both halves, too */
        cuda_find_bad(r.with(bad.data(), bad.size() * 4), n * K, type, found, stream);
        l.n = l.batch = 0;
        cuda_class_losses(&l, nullptr, 0, stream);
    });
}

static void optimisers(size_t n, size_t from)
{
    check("optimisers", [=](run &r) {
        struct cuda_step s = {0.1f, 1};
        const struct cuda_step *step = r.step(s);
        float *w = r.floats(n + from) + from, *g = r.floats(n + from) + from;
        float *m = static_cast<float *>(r.zeros(n * 4));
        float *v = static_cast<float *>(r.zeros(n * 4)), *e = r.floats(n);
        auto *parts = static_cast<double *>(r.room(2 * CUDA_PARTS * sizeof(double)));
        auto *verdict =
            static_cast<struct cuda_verdict *>(r.zeros(sizeof(struct cuda_verdict)));
        struct cuda_scaler scaler = {1024, 0};
        auto *scales = static_cast<struct cuda_scaler *>(r.with(&scaler, sizeof scaler));
        const size_t from_to[] = {9, 9 + n / 2};
        auto *borders = static_cast<size_t *>(r.with(from_to, sizeof from_to));
        auto *updates = static_cast<uint64_t *>(r.zeros(8));
        auto *result =
            static_cast<struct cuda_result *>(r.room(sizeof(struct cuda_result)));
        cuda_squares(g, int64_t(n), false, parts, stream);
        cuda_squares(g, int64_t(n), true, parts, stream);
        cuda_squares(w, int64_t(n), false, parts + CUDA_PARTS, stream);
        cuda_judge(parts, 2, 0.5f, scales, verdict, stream);
        static const char *const none[OPTIM_STATES] = {},
                                 *const one[OPTIM_STATES] = {"m"},
                                 *const two[OPTIM_STATES] = {"m", "v"};
        static const struct optim_type types[] = {
            {"sgd", RULE_SGD, false, 0, 0, 0, 0, 0, none},
            {"momentum", RULE_SGD, false, 0, 0, 0.9f, 0, 0, one},
            {"adam", RULE_ADAM, false, 0, 0, 0.9f, 0.999f, 1e-8f, two},
            {"adadelta", RULE_ADADELTA, false, 0, 0, 0.9f, 0, 1e-6f, two}};
        for (const struct optim_type &t : types) {
            struct optim o = {&t, t.b1, t.b2, 0.01f, 0, 0.1f};
            o.nborders = 2;
            struct cuda_update u = {
                w,    g,       {t.states[0] ? m : nullptr, t.states[1] ? v : nullptr, e},
                7,    borders, updates,
                step, verdict};
            cuda_optimise(&u, &o, 0, n, 0, stream);
        }
        cuda_finish(verdict, true, scales, result, updates, stream);
    });
}

/* More blocks than a grid-stride walk has, and more parts than sums have. */
static void many()
{
    images({CUDA_F32, 3, 1, 1001, 701});
    images({CUDA_F32, 40000, 64, 1, 1});
    images({CUDA_F32, 3, 20000, 2, 2});
    optimisers(2400001, 0);
    dropout({CUDA_BF16, 4200001, 1, 1, 1});
    losses(3001, 10, CUDA_F16);
    sequences(40, 500, 24, CUDA_BF16);
    attention(3, 200, 4, 2, 8, CUDA_F32);
    token_losses(5, 600, 11, CUDA_F16);
}

int main()
{
    const char *how_long = getenv("DDP_RACES");
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    static const int shapes[][4] = {{1, 1, 1, 1},   {2, 3, 5, 7},   {1, 8, 2, 2},
                                    {3, 5, 4, 6},   {1, 33, 35, 3}, {5, 40, 1, 1},
                                    {2, 72, 4, 4},  {9, 8, 16, 6},  {700, 24, 1, 1},
                                    {3, 1, 37, 64}, {1, 300, 3, 3}};
    for (auto &s : shapes)
        images({CUDA_F32, s[0], s[1], s[2], s[3]});
    for (int type = CUDA_F32; type <= CUDA_F16; type++) {
        enum cuda_type t = (enum cuda_type)type;
        batches({t, 3, 1, 5, 7});
        batches({t, 4, 3, 8, 8});
        norm({t, 0, 5, 4, 4}, LEARN | SHARED);
        rows(1, 1, 1, t);
        rows(7, 20, 3, t);
        rows(3, 2, 9, t);
        dropout({t, 3, 5, 7, 2});
        for (int64_t n : {1, 77, 4096}) {
            types(n, t);
            dropout({t, int(n), 1, 1, 1});
        }
        sequences(1, 1, 1, t);
        sequences(3, 7, 40, t);
        sequences(2, 300, 13, t);
        attention(1, 1, 1, 1, 1, t);
        attention(2, 70, 3, 1, 5, t);
        attention(1, 33, 1, 1, 64, t);
        attention(1, 5, 2, 2, 128, t);
        token_losses(1, 1, 2, t);
        token_losses(3, 5, 300, t);
        losses(1, 2, t);
        losses(300, 11, t);
    }
    optimisers(1, 0);
    optimisers(1003, 0);
    optimisers(70000, 0);
    optimisers(1003, 3);
    if (how_long && strcmp(how_long, "long") == 0)
        many();
    printf("%d cases in %d orders: %s\n", cases, TURNS, failures ? "FAILED" : "ok");
    return failures ? 1 : 0;
}
