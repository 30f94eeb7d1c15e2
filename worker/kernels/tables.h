/* worker/kernels/tables.h - functions that several files give an engine's table
 *
 * Each list is of members of struct kernels, whose types are those of the functions:
 * DECLARE_KERNEL declares avx2_conv() and so on, KERNEL_ROW is its row in the table.
 *
 * tests/worker/nn/test_tokens.c compares those of sequences with finite differences.
 */
#ifndef WORKER_KERNELS_TABLES_H
#define WORKER_KERNELS_TABLES_H

#include "worker/kernels/kernels.h"

#define JOIN_(a, b) a##_##b
#define JOIN(a, b)  JOIN_(a, b)

#define DECLARE_KERNEL(engine, member) \
    extern __typeof__(*((struct kernels *)NULL)->member) JOIN(engine, member);
#define KERNEL_ROW(engine, member) .member = JOIN(engine, member),
#define STATIC_ROW(engine, member) .member = member,

#define NORM_KERNELS(F, engine) \
    F(engine, norm_plan)        \
    F(engine, norm_share)       \
    F(engine, norm)             \
    F(engine, norm_back)        \
    F(engine, mean)             \
    F(engine, mean_back)        \
    F(engine, map_floats)

#define WEIGHT_KERNELS(F, engine) \
    F(engine, linear_plan)        \
    F(engine, linear)             \
    F(engine, linear_back)        \
    F(engine, linear_factors)     \
    F(engine, linear_rows)        \
    F(engine, conv_plan)          \
    F(engine, conv_floats)        \
    F(engine, conv)               \
    F(engine, conv_back)

#define LAYER_KERNELS(F, engine) NORM_KERNELS(F, engine) WEIGHT_KERNELS(F, engine)

#define PRODUCT_KERNELS(F, engine) \
    F(engine, gemm_room)           \
    F(engine, gemm)

/* In fp32 with each precision. */
#define SEQUENCE_KERNELS(F, engine) \
    F(engine, row_norm)             \
    F(engine, row_norm_back)        \
    F(engine, column_sums)          \
    F(engine, activation)           \
    F(engine, rotary)               \
    F(engine, attention_room)       \
    F(engine, attention)            \
    F(engine, attention_back)       \
    F(engine, class_loss)

#endif
