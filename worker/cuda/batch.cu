/* worker/cuda/batch.cu - see kernels.h: gathers samples into batches, and converts
 * parameters between types */
#include "worker/cuda/device.h"

/* Index of the step's sample i in the data that s refers to. */
static __device__ inline int64_t lies_at(const struct cuda_step *s, const uint32_t *which,
                                         int64_t i)
{
    return s->in_order ? i : which[i];
}

/* Of pixels that are floats, or bytes, which as_float makes floats of. */
template <class T, class P>
static __global__ void gather_images(const struct cuda_step *s, const uint32_t *which,
                                     uint32_t from, uint32_t n, struct layout l,
                                     struct augment how, const float *as_float, T *x,
                                     uint32_t *labels)
{
    uint32_t H = l.H.by, W = l.W.by, len = l.C.by * H * W;
    bool moves = how.pad > 0 || how.flip;
    how.key = s->augment_key;
    for (EACH_OF(i, n)) {
        struct place p = place_at(i, l);
        int64_t at = lies_at(s, which, from + p.b);
        const P *image = (const P *)s->x + at * len;
        if (p.c + p.h + p.w == 0)
            labels[p.b] = ((const uint32_t *)s->t)[at];
        P pixel = 0; /* black, outside the image */
        if (moves) {
            struct augment_move by = augment_draw(&how, which[from + p.b]);
            p.h += (uint32_t)by.dy; /* wraps beyond 2^31 if negative */
            p.w = (by.mirror ? W - 1 - p.w : p.w) + (uint32_t)by.dx;
        }
        if (p.h < H && p.w < W)
            pixel = image[(p.c * H + p.h) * W + p.w];
        put(&x[i], as_float ? as_float[p.c * 256 + (uint32_t)pixel] : (float)pixel);
    }
}

void cuda_gather_images(const struct cuda_step *s, const uint32_t *which, int from,
                        struct cuda_map m, struct augment how, const float *as_float,
                        void *x, uint32_t *labels, cudaStream_t stream)
{
    uint32_t n = elements(m), first = (uint32_t)from;
    struct layout l = layout_of(m);
    FOR_TYPE(m.type, if (as_float) LAUNCH((gather_images<T, uint8_t>), blocks_for(n),
                                          THREADS, stream, s, which, first, n, l, how,
                                          as_float, (T *)x, labels);
             else LAUNCH((gather_images<T, float>), blocks_for(n), THREADS, stream, s,
                         which, first, n, l, how, as_float, (T *)x, labels));
}

template <class T>
static __global__ void gather_floats(const struct cuda_step *s, const uint32_t *which,
                                     int from, int n, int len, int outputs, T *x,
                                     float *t)
{
    const float *inputs = (const float *)s->x, *targets = (const float *)s->t;
    for (EACH(i, (int64_t)n * len))
        put(&x[i], inputs[lies_at(s, which, from + i / len) * len + i % len]);
    for (EACH(i, (int64_t)n * outputs))
        t[i] = targets[lies_at(s, which, from + i / outputs) * outputs + i % outputs];
}

void cuda_gather_floats(const struct cuda_step *s, const uint32_t *which, int from, int n,
                        int len, int outputs, enum cuda_type type, void *x, float *t,
                        cudaStream_t stream)
{
    int most = len > outputs ? len : outputs;
    FOR_TYPE(type, LAUNCH(gather_floats<T>, blocks_for((int64_t)n * most), THREADS,
                          stream, s, which, from, n, len, outputs, (T *)x, t));
}

static __global__ void gather_tokens(const struct cuda_step *s, int64_t first, int64_t n,
                                     uint32_t *tokens)
{
    for (EACH(i, n))
        tokens[i] = ((const uint32_t *)s->x)[first + i];
}

void cuda_gather_tokens(const struct cuda_step *s, int from, int n, int T,
                        uint32_t *tokens, cudaStream_t stream)
{
    int64_t each = T + 1;
    LAUNCH(gather_tokens, blocks_for(n * each), THREADS, stream, s, from * each, n * each,
           tokens);
}

/* ---- parameters ---- */

template <class From, class To>
static __global__ void convert(const From *w, int64_t n, To *to)
{
    for (EACH(i, n))
        put(&to[i], get(w[i]));
}

void cuda_narrow(const float *w, int64_t n, enum cuda_type type, void *to,
                 cudaStream_t stream)
{
    FOR_TYPE(type,
             LAUNCH((convert<float, T>), blocks_for(n), THREADS, stream, w, n, (T *)to));
}

void cuda_widen(const void *w, int64_t n, enum cuda_type type, float *to,
                cudaStream_t stream)
{
    FOR_TYPE(type, LAUNCH((convert<T, float>), blocks_for(n), THREADS, stream,
                          (const T *)w, n, to));
}

template <class T> static __global__ void add(T *to, const T *from, int64_t n)
{
    for (EACH(i, n))
        put(&to[i], get(to[i]) + get(from[i]));
}

void cuda_add(void *to, const void *from, int64_t n, enum cuda_type type,
              cudaStream_t stream)
{
    FOR_TYPE(type,
             LAUNCH(add<T>, blocks_for(n), THREADS, stream, (T *)to, (const T *)from, n));
}
