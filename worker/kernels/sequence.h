/* worker/kernels/sequence.h - the functions of an engine's table for sequences
 *
 * Written once, for vectors; the reference engine uses those of `simd`, since naive
 * loops would be the same source. tests/worker/nn/test_gpt2.c compares them with finite
 * differences.
 */
#ifndef WORKER_KERNELS_SEQUENCE_H
#define WORKER_KERNELS_SEQUENCE_H

#include "worker/kernels/kernels.h"

#define JOIN_(a, b) a##_##b
#define JOIN(a, b)  JOIN_(a, b)

#define PRODUCT_FUNCTIONS(engine)                                                       \
    size_t JOIN(engine, gemm_room)(void);                                               \
    void JOIN(engine, gemm)(const struct gemm *g, float *room);                         \
    /* gemm() in the calling thread alone, with one thread's part of its scratch memory \
     */                                                                                 \
    void JOIN(engine, gemm_alone)(const struct gemm *g, float *room);

/* In fp32 with each precision. */
#define SEQUENCE_FUNCTIONS(engine)                                                       \
    void JOIN(engine, layer_norm)(int n, int C, const float *x, const float *w,          \
                                  const float *bias, float *y, float *kept);             \
    void JOIN(engine, layer_norm_back)(int n, int C, const float *x, const float *w,     \
                                       const float *kept, const float *dy, float *dw,    \
                                       float *dbias, float *dx, bool add);               \
    void JOIN(engine, column_sums)(int n, int C, const float *dy, float *sums);          \
    void JOIN(engine, gelu)(int64_t n, const float *x, float *y);                        \
    void JOIN(engine, gelu_back)(int64_t n, const float *x, const float *dy, float *dx); \
    size_t JOIN(engine, attention_room)(struct attention_shape s);                       \
    void JOIN(engine, attention)(struct attention_shape s, int n, const float *qkv,      \
                                 float *y, float *lse, float *room);                     \
    void JOIN(engine, attention_back)(struct attention_shape s, int n, const float *qkv, \
                                      const float *y, const float *lse, const float *dy, \
                                      float *dqkv, float *room);                         \
    void JOIN(engine, token_loss)(int n, int V, float *logits, const uint32_t *labels,   \
                                  float scale, double *found);

#define PRODUCT_KERNELS(engine) \
    .gemm_room = JOIN(engine, gemm_room), .gemm = JOIN(engine, gemm)
#define SEQUENCE_KERNELS(engine)                                          \
    .layer_norm = JOIN(engine, layer_norm),                               \
    .layer_norm_back = JOIN(engine, layer_norm_back),                     \
    .column_sums = JOIN(engine, column_sums), .gelu = JOIN(engine, gelu), \
    .gelu_back = JOIN(engine, gelu_back),                                 \
    .attention_room = JOIN(engine, attention_room),                       \
    .attention = JOIN(engine, attention),                                 \
    .attention_back = JOIN(engine, attention_back),                       \
    .token_loss = JOIN(engine, token_loss)

#endif
