/* worker/cuda/dnn_graph.h - operations of cuDNN's graph API, by one of its engines
 *
 * They are described by "backend descriptors": tensors, operations on them, a graph of
 * operations, an engine for the graph, its configuration with
 * settings (knobs), and a plan to execute it. (NVIDIA cuDNN API reference, "cudnn_graph
 * library"; the attributes are those that its own cudnn-frontend sets.)
 *
 * cuDNN's heuristics give a list of configurations, best first; a place in it names one.
 * The list is the same for equal devices and versions of cuDNN. Configurations
 * that the API rejects, that are less precise, or not deterministic where they must be,
 * are skipped; that is no error. Plans are built outside of capture; executing one may be
 * captured.
 *
 * conv.c and attention_graph.c make graphs. Sums are float.
 */
#ifndef WORKER_CUDA_DNN_GRAPH_H
#define WORKER_CUDA_DNN_GRAPH_H

#include "worker/cuda/failure.h"
#include "worker/cuda/kernels.h"

#include <cudnn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* As CUDA(). */
#define DNN(call) dnn_note(cuda_failed() ? CUDNN_STATUS_SUCCESS : (call))
bool dnn_note(cudnnStatus_t rc);

static inline cudnnDataType_t dnn_type(enum cuda_type type)
{
    return type == CUDA_F32    ? CUDNN_DATA_FLOAT
           : type == CUDA_BF16 ? CUDNN_DATA_BFLOAT16
                               : CUDNN_DATA_HALF;
}

enum { MOST_CONFIGS = 48, MOST_PARTS = 128 + 2 * MOST_CONFIGS };

struct dnn_graph {
    cudnnBackendDescriptor_t of[MOST_PARTS]; /* owned: all descriptors */
    int n;
    bool failed; /* then no more are created */
    bool tensor_cores, deterministic;
    cudnnBackendDescriptor_t configs[MOST_CONFIGS]; /* NULL: cannot be taken */
    cudnnBackendDescriptor_t plans[MOST_CONFIGS];   /* NULL: not built yet */
    int nconfigs;
    char *key; /* owned: of the products that share the graph, in a list; or NULL */
    struct dnn_graph *next;
};

/* tensor_cores: operands may be rounded; deterministic: no engine whose results vary. */
struct dnn_graph *dnn_graph_make(bool tensor_cores, bool deterministic);
void dnn_graph_free(struct dnn_graph *g);

/* ---- its parts ---- */

/* `count` 0: not set. */
struct dnn_attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    const void *values;
};
/* An attribute that is another descriptor, in a variable; NULL: not set. */
#define DNN_PART(name, part)                                         \
    {                                                                \
        name, CUDNN_TYPE_BACKEND_DESCRIPTOR, (part) != NULL, &(part) \
    }

/* A descriptor with these attributes, which `g` owns. */
cudnnBackendDescriptor_t dnn_make(struct dnn_graph *g, cudnnBackendDescriptorType_t type,
                                  const struct dnn_attribute *all, size_t n);

struct dnn_tensor {
    int64_t uid, dims[4], strides[4];
    cudnnDataType_t type;
    int64_t alignment;
    bool is_virtual; /* has no memory */
    bool by_value;   /* a number of the host's */
};
cudnnBackendDescriptor_t dnn_tensor(struct dnn_graph *g, const struct dnn_tensor *is);

/* ---- its engines ---- */

/* Lists the configurations for these operations: none if cuDNN rejects them. */
void dnn_graph_list(struct dnn_graph *g, cudnnHandle_t dnn,
                    const cudnnBackendDescriptor_t *operations, int n);

/* The plan of the configuration at this place, owned by `g`: 1; 0 if it cannot be taken,
 * or needs a larger workspace; -1 behind the end of the list. */
int dnn_graph_plan(struct dnn_graph *g, cudnnHandle_t dnn, int place, size_t workspace,
                   cudnnBackendDescriptor_t *plan);

/* Runs on the handle's stream, with the tensors' addresses. */
void dnn_graph_play(cudnnBackendDescriptor_t plan, cudnnHandle_t dnn, int n,
                    const int64_t *uids, const void *const *places, void *workspace);

/* ---- attention_graph.c: causal attention, in bf16 and fp16 ---- */

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
