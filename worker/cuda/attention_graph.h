/* worker/cuda/attention_graph.h - causal attention by an engine of cuDNN (dnn_graph.h)
 *
 * In bf16 and fp16. cuDNN recognises a graph of products, softmax and mask as attention
 * and executes it as one or two kernels, without a T x T matrix. The graphs are those
 * that cudnn-frontend makes ("scaled dot product attention"); layouts are kernels.h's.
 */
#ifndef WORKER_CUDA_ATTENTION_GRAPH_H
#define WORKER_CUDA_ATTENTION_GRAPH_H

#include "worker/cuda/dnn_graph.h"

struct dnn_attention {
    bool back;
    cudnnDataType_t type; /* of queries, keys, values, outputs and their gradients */
    int n, T, heads, kv_heads, D;
    bool deterministic;
};

struct dnn_graph *attention_graph_make(cudnnHandle_t dnn, const struct dnn_attention *s);

/* Device memory; from `dy` on NULL in forward. lse and dots: [n, T, heads], dq_sum: the
 * sums of queries' gradients, [n, heads, T, D], floats. */
struct attention_memory {
    const void *qkv, *y, *lse, *dy, *dqkv, *dots, *dq_sum;
};
cudnnStatus_t attention_graph_play(cudnnBackendDescriptor_t plan, cudnnHandle_t dnn,
                                   const struct dnn_attention *s,
                                   const struct attention_memory *m, void *workspace);

#endif
