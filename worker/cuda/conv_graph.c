/* worker/cuda/conv_graph.c - see conv_graph.h
 *
 * Descriptors are made, given their attributes and finalised, in this order:
 *
 *     tensor x, w, y   convolution
 *            operation
 *         operation graph ---- heuristics: configurations of engines
 *                                            plan
 *
 * A variant pack has the addresses of x, w, y and the workspace.
 *
 * Dimensions are given as N, C, H, W; the strides describe that channels are last.
 */
#include "worker/cuda/conv_graph.h"

#include "common/mem.h"

#include <stdint.h>
#include <stdlib.h>

enum { MOST_CONFIGS = 48, MOST_PARTS = 8 + 2 * MOST_CONFIGS };

struct conv_graph {
    cudnnBackendDescriptor_t of[MOST_PARTS]; /* owned: all descriptors */
    int n;
    bool failed; /* then no more are created */
    bool tensor_cores, deterministic;
    cudnnBackendDescriptor_t configs[MOST_CONFIGS]; /* NULL: cannot be taken */
    cudnnBackendDescriptor_t plans[MOST_CONFIGS];   /* NULL: not built yet */
    int nconfigs;
};

static const int64_t uids[] = {'x', 'w', 'y'};

/* ---- descriptors ---- */

static cudnnBackendDescriptor_t begin(struct conv_graph *g,
                                      cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t d = NULL;
    if (g->failed || g->n == MOST_PARTS ||
        cudnnBackendCreateDescriptor(type, &d) != CUDNN_STATUS_SUCCESS) {
        g->failed = true;
        return NULL;
    }
    g->of[g->n++] = d;
    return d;
}

static void put(struct conv_graph *g, cudnnBackendDescriptor_t d,
                cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                int64_t count, const void *values)
{
    if (!g->failed &&
        cudnnBackendSetAttribute(d, name, type, count, values) != CUDNN_STATUS_SUCCESS)
        g->failed = true;
}

static void put_part(struct conv_graph *g, cudnnBackendDescriptor_t d,
                     cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t part)
{
    put(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &part);
}

static void put_number(struct conv_graph *g, cudnnBackendDescriptor_t d,
                       cudnnBackendAttributeName_t name, int64_t value)
{
    put(g, d, name, CUDNN_TYPE_INT64, 1, &value);
}

static void end(struct conv_graph *g, cudnnBackendDescriptor_t d)
{
    if (!g->failed && cudnnBackendFinalize(d) != CUDNN_STATUS_SUCCESS)
        g->failed = true;
}

/* Reads up to `most` values; returns their number, or -1. */
static int64_t get(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                   cudnnBackendAttributeType_t type, int64_t most, void *values)
{
    int64_t n = 0;
    return cudnnBackendGetAttribute(d, name, type, most, &n, values) ==
                   CUDNN_STATUS_SUCCESS
               ? n
               : -1;
}

void conv_graph_free(struct conv_graph *g)
{
    while (g->n > 0)
        cudnnBackendDestroyDescriptor(g->of[--g->n]);
    free(g);
}

/* ---- the operation ---- */

/* A tensor [N,C,H,W]. */
struct tensor {
    int64_t dims[4];
    cudnnDataType_t type;
    int64_t alignment;
};

static cudnnBackendDescriptor_t make_tensor(struct conv_graph *g, int64_t uid,
                                            const struct tensor *is)
{
    int64_t C = is->dims[1], H = is->dims[2], W = is->dims[3];
    const int64_t strides[] = {C * H * W, 1, W * C, C};
    cudnnBackendDescriptor_t t = begin(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    put(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &is->type);
    put(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, is->dims);
    put(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, strides);
    put_number(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, uid);
    put_number(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, is->alignment);
    end(g, t);
    return t;
}

static cudnnBackendDescriptor_t make_convolution(struct conv_graph *g,
                                                 const struct convolution *s)
{
    cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t pads[] = {s->pad, s->pad}, strides[] = {s->stride, s->stride};
    const int64_t dilations[] = {1, 1};
    cudnnBackendDescriptor_t c = begin(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    put(g, c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    put(g, c, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
    put_number(g, c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 2);
    put(g, c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    put(g, c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    put(g, c, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations);
    put(g, c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides);
    end(g, c);
    return c;
}

/* The three kinds of operation, and the names of their attributes. */
static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
} operations[PASSES] = {
    [PASS_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [PASS_WEIGHTS] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
    [PASS_INPUTS] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
};

/* The graph: one operation. */
static cudnnBackendDescriptor_t make_graph(struct conv_graph *g, cudnnHandle_t dnn,
                                           const struct convolution *s)
{
    const struct tensor x_is = {{s->n, s->C, s->H, s->W}, s->type, 16};
    const struct tensor y_is = {{s->n, s->K, s->OH, s->OW}, s->type, 16};
    const struct tensor w_is = {{s->K, s->C, s->R, s->R}, s->type, s->w_alignment};
    float one = 1, beta = s->adds ? 1 : 0;
    cudnnBackendDescriptor_t x = make_tensor(g, uids[0], &x_is);
    cudnnBackendDescriptor_t w = make_tensor(g, uids[1], &w_is);
    cudnnBackendDescriptor_t y = make_tensor(g, uids[2], &y_is);
    cudnnBackendDescriptor_t c = make_convolution(g, s);
    cudnnBackendDescriptor_t o = begin(g, operations[s->pass].type);
    put_part(g, o, operations[s->pass].x, x);
    put_part(g, o, operations[s->pass].w, w);
    put_part(g, o, operations[s->pass].y, y);
    put_part(g, o, operations[s->pass].convolution, c);
    put(g, o, operations[s->pass].alpha, CUDNN_TYPE_FLOAT, 1, &one);
    put(g, o, operations[s->pass].beta, CUDNN_TYPE_FLOAT, 1, &beta);
    end(g, o);
    cudnnBackendDescriptor_t graph = begin(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    put(g, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn);
    put_part(g, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, o);
    end(g, graph);
    return graph;
}

/* ---- configurations ---- */

/* Appends the results of one of cuDNN's heuristics to the list. */
static void list_by(struct conv_graph *g, cudnnBackendDescriptor_t graph,
                    cudnnBackendHeurMode_t mode)
{
    cudnnBackendDescriptor_t guess = begin(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    put_part(g, guess, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    put(g, guess, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    end(g, guess);
    cudnnBackendDescriptor_t *first = &g->configs[g->nconfigs];
    int64_t room = MOST_CONFIGS - g->nconfigs;
    int64_t found = g->failed ? 0
                              : get(guess, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, NULL);
    found = found < room ? found : room;
    for (int64_t i = 0; i < found; i++)
        first[i] = begin(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t filled = g->failed || found < 1
                         ? 0
                         : get(guess, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                               CUDNN_TYPE_BACKEND_DESCRIPTOR, found, first);
    g->nconfigs += (int)(filled < 0 ? 0 : filled < found ? filled : found);
}

struct conv_graph *conv_graph_make(cudnnHandle_t dnn, const struct convolution *shape)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A,
                                                   CUDNN_HEUR_MODE_FALLBACK};
    struct conv_graph *g = xcalloc(1, sizeof *g);
    cudnnBackendDescriptor_t graph = make_graph(g, dnn, shape);
    bool good = !g->failed;
    g->tensor_cores = shape->tensor_cores;
    g->deterministic = shape->deterministic;
    for (size_t i = 0; i < ARRAY_LEN(modes) && good; i++) {
        g->failed = false; /* one heuristic may do without the other */
        list_by(g, graph, modes[i]);
    }
    return g;
}

/* Accepts only engines that accumulate in the required precision, do not round their
 * operands, unless tensor cores are allowed to, and are deterministic if required. */
static bool may_take(const struct conv_graph *g, cudnnBackendDescriptor_t config)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    cudnnBackendDescriptor_t engine; /* filled in by the query */
    if (cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR, &engine) !=
        CUDNN_STATUS_SUCCESS)
        return false;
    int64_t n = get(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                    &engine);
    if (n >= 0)
        n = get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
    cudnnBackendDestroyDescriptor(engine);
    for (int64_t i = 0; i < n && n <= CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++) {
        if (notes[i] == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION ||
            notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS ||
            (notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && !g->tensor_cores) ||
            (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC && g->deterministic))
            return false;
    }
    return n >= 0 && n <= CUDNN_NUMERICAL_NOTE_TYPE_COUNT;
}

/* NULL: the library rejects it. */
static cudnnBackendDescriptor_t make_plan(struct conv_graph *g, cudnnHandle_t dnn,
                                          cudnnBackendDescriptor_t config)
{
    g->failed = false;
    cudnnBackendDescriptor_t plan = begin(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    put(g, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn);
    put_part(g, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    end(g, plan);
    return g->failed ? NULL : plan;
}

int conv_graph_plan(struct conv_graph *g, cudnnHandle_t dnn, int place, size_t workspace,
                    cudnnBackendDescriptor_t *plan)
{
    int64_t needs = -1;
    if (place >= g->nconfigs)
        return -1;
    cudnnBackendDescriptor_t *config = &g->configs[place], *built = &g->plans[place];
    if (*config && !*built)
        *built = may_take(g, *config) ? make_plan(g, dnn, *config) : NULL;
    if (!*built)
        *config = NULL;
    *plan = *built;
    return *built &&
           get(*built, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
               &needs) >= 0 &&
           needs >= 0 && (uint64_t)needs <= workspace;
}

cudnnStatus_t conv_graph_play(cudnnBackendDescriptor_t plan, cudnnHandle_t dnn,
                              const void *x, const void *w, const void *y,
                              void *workspace)
{
    const void *places[] = {x, w, y};
    cudnnBackendDescriptor_t pack;
    cudnnStatus_t rc =
        cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
    if (rc != CUDNN_STATUS_SUCCESS)
        return rc;
    rc = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                  CUDNN_TYPE_VOID_PTR, ARRAY_LEN(places), places);
    if (rc == CUDNN_STATUS_SUCCESS)
        rc = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                      CUDNN_TYPE_INT64, ARRAY_LEN(uids), uids);
    if (rc == CUDNN_STATUS_SUCCESS)
        rc = cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                      CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (rc == CUDNN_STATUS_SUCCESS)
        rc = cudnnBackendFinalize(pack);
    if (rc == CUDNN_STATUS_SUCCESS)
        rc = cudnnBackendExecute(dnn, plan, pack);
    cudnnBackendDestroyDescriptor(pack);
    return rc;
}
