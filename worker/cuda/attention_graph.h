/* worker/cuda/attention_graph.h - causal attention by an engine of cuDNN (dnn_graph.h)
 *
 * In bf16 and fp16. cuDNN recognises a graph of products, softmax and mask as attention
 * and executes it as one or two kernels, without a T x T matrix. The graphs are those
 * that cudnn-frontend makes ("scaled dot product attention"); layouts are kernels.h's.
 */
#ifndef WORKER_CUDA_ATTENTION_GRAPH_H
#define WORKER_CUDA_ATTENTION_GRAPH_H

#include "worker/cuda/dnn_graph.h"

/* In backward `deterministic` means: without a sum to which blocks add in any order. */
struct dnn_graph *attention_graph_make(cudnnHandle_t dnn, const struct cuda_attention *a,
                                       bool back, bool deterministic);

/* Device memory; from `dy` on NULL in forward. lse and dots: [n, T, heads]; dq_sum: the
 * sums of queries' gradients, [n, heads, T, D], NULL if deterministic. Floats. */
struct attention_memory {
    const void *qkv, *y, *lse, *dy, *dqkv, *dots, *dq_sum;
};
void attention_graph_play(cudnnBackendDescriptor_t plan, cudnnHandle_t dnn,
                          const struct cuda_attention *a,
                          const struct attention_memory *m, void *workspace);

#endif
