/* worker/cuda/conv_graph.c - see conv_graph.h
 *
 * Descriptors are made, given their attributes and finalised, in this order:
 *
 *     tensor x, w, y   convolution
 *            operation
 *         operation graph ---- heuristics: configurations
 *            engine    knobs
 *            configuration
 *                plan            variant pack: where x, w, y and the workspace are
 *
 * Dimensions are given as N, C, H, W; the strides describe that channels are last.
 */
#include "worker/cuda/conv_graph.h"

#include "common/mem.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_KNOBS = CUDNN_KNOB_TYPE_COUNTS, MOST_PARTS = 16 + MOST_KNOBS };

/* Descriptors that are freed together; after the first failure no more are created. */
struct conv_graph {
    cudnnBackendDescriptor_t of[MOST_PARTS]; /* owned */
    int n;
    bool failed;
    cudnnBackendDescriptor_t plan; /* one of them */
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

/* Reads the single value. */
static bool get_one(cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                    cudnnBackendAttributeType_t type, void *value)
{
    return get(d, name, type, 1, value) >= 0;
}

static void let_go(struct conv_graph *g)
{
    while (g->n > 0)
        cudnnBackendDestroyDescriptor(g->of[--g->n]);
}

void conv_graph_free(struct conv_graph *g)
{
    if (g)
        let_go(g);
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

/* ---- engines and their settings ---- */

/* Writes the name of an engine's configuration; returns false if it cannot be read. */
static bool name_of(cudnnBackendDescriptor_t config, char name[CONV_GRAPH_NAME])
{
    struct conv_graph g = {.n = 0}; /* filled in by the queries */
    cudnnBackendDescriptor_t knobs[MOST_KNOBS];
    cudnnBackendDescriptor_t engine = begin(&g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    for (int i = 0; i < MOST_KNOBS; i++)
        knobs[i] = begin(&g, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    int64_t number = -1, n = -1;
    bool good =
        !g.failed &&
        get_one(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                &engine) &&
        get_one(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, &number) &&
        (n = get(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                 MOST_KNOBS, knobs)) >= 0 &&
        n <= MOST_KNOBS;
    size_t size = CONV_GRAPH_NAME;
    size_t used = (size_t)snprintf(name, size, "g%lld", (long long)number);
    for (int64_t i = 0; i < n && good && used < size; i++) {
        cudnnBackendKnobType_t knob = CUDNN_KNOB_TYPE_COUNTS;
        int64_t value = 0;
        good = get_one(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE,
                       &knob) &&
               get_one(knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64,
                       &value);
        used += (size_t)snprintf(name + used, size - used, ",%d:%lld", (int)knob,
                                 (long long)value);
    }
    let_go(&g);
    return good && used < size;
}

static bool is_new(char (*names)[CONV_GRAPH_NAME], int n)
{
    for (int i = 0; i < n; i++) {
        if (strcmp(names[i], names[n]) == 0)
            return false;
    }
    return true;
}

/* Appends the results of one of cuDNN's heuristics to n names. */
static int list_by(cudnnBackendDescriptor_t graph, cudnnBackendHeurMode_t mode,
                   char (*names)[CONV_GRAPH_NAME], int n, int most)
{
    enum { MOST = 128 };
    struct conv_graph g = {.n = 0};
    cudnnBackendDescriptor_t guess = begin(&g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    put_part(&g, guess, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    put(&g, guess, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    end(&g, guess);
    cudnnBackendDescriptor_t configs[MOST];
    int made = 0;
    int64_t found = g.failed ? 0
                             : get(guess, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                   CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, NULL);
    int wanted = found > MOST ? MOST : (int)found;
    while (made < wanted &&
           cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                                        &configs[made]) == CUDNN_STATUS_SUCCESS)
        made++;
    found = made > 0 && made == wanted ? get(guess, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                             CUDNN_TYPE_BACKEND_DESCRIPTOR, made, configs)
                                       : 0;
    for (int i = 0; i < made && i < found && n < most; i++) {
        if (name_of(configs[i], names[n]) && is_new(names, n))
            n++;
    }
    while (made > 0)
        cudnnBackendDestroyDescriptor(configs[--made]);
    let_go(&g);
    return n;
}

int conv_graph_list(cudnnHandle_t dnn, const struct convolution *shape,
                    char (*names)[CONV_GRAPH_NAME], int most)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B,
                                                   CUDNN_HEUR_MODE_FALLBACK};
    struct conv_graph g = {.n = 0};
    cudnnBackendDescriptor_t graph = make_graph(&g, dnn, shape);
    int n = 0;
    for (size_t i = 0; i < ARRAY_LEN(modes) && n < most && !g.failed; i++)
        n = list_by(graph, modes[i], names, n, most);
    let_go(&g);
    return n;
}

/* ---- plans ---- */

/* Accepts only engines that are deterministic, accumulate in the required precision,
 * and do not round their operands, unless tensor cores are allowed to. */
static bool may_take(cudnnBackendDescriptor_t engine, const struct convolution *s)
{
    cudnnBackendNumericalNote_t notes[CUDNN_NUMERICAL_NOTE_TYPE_COUNT];
    int64_t n = get(engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE,
                    CUDNN_NUMERICAL_NOTE_TYPE_COUNT, notes);
    for (int64_t i = 0; i < n && n <= CUDNN_NUMERICAL_NOTE_TYPE_COUNT; i++) {
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC ||
            notes[i] == CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION ||
            notes[i] == CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS ||
            (notes[i] == CUDNN_NUMERICAL_NOTE_TENSOR_CORE && !s->tensor_cores))
            return false;
    }
    return n >= 0 && n <= CUDNN_NUMERICAL_NOTE_TYPE_COUNT;
}

/* Parses the knobs in a name, after the engine's number. */
static int64_t make_knobs(struct conv_graph *g, const char *text,
                          cudnnBackendDescriptor_t knobs[MOST_KNOBS])
{
    int64_t n = 0;
    while (*text == ',' && n < MOST_KNOBS && !g->failed) {
        char *colon, *next;
        cudnnBackendKnobType_t knob =
            (cudnnBackendKnobType_t)strtol(text + 1, &colon, 10);
        int64_t value = *colon == ':' ? strtoll(colon + 1, &next, 10) : 0;
        if (*colon != ':' || next == colon + 1)
            break;
        cudnnBackendDescriptor_t k = begin(g, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        put(g, k, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &knob);
        put_number(g, k, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
        end(g, k);
        knobs[n++] = k;
        text = next;
    }
    g->failed = g->failed || *text != '\0';
    return n;
}

static void make_plan(struct conv_graph *g, cudnnHandle_t dnn,
                      const struct convolution *s, const char *name)
{
    char *rest;
    cudnnBackendDescriptor_t knobs[MOST_KNOBS];
    int64_t number = strtoll(name + 1, &rest, 10);
    cudnnBackendDescriptor_t graph = make_graph(g, dnn, s);
    cudnnBackendDescriptor_t engine = begin(g, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    put_part(g, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
    put_number(g, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, number);
    end(g, engine);
    g->failed = g->failed || rest == name + 1 || !may_take(engine, s);
    int64_t n = make_knobs(g, rest, knobs);
    cudnnBackendDescriptor_t config = begin(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    put_part(g, config, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
    if (n > 0)
        put(g, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR,
            n, knobs);
    end(g, config);
    g->plan = begin(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    put(g, g->plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn);
    put_part(g, g->plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
    end(g, g->plan);
}

struct conv_graph *conv_graph_build(cudnnHandle_t dnn, const struct convolution *shape,
                                    const char *name, size_t workspace)
{
    struct conv_graph *g = xcalloc(1, sizeof *g);
    int64_t needs = -1;
    if (*name == 'g')
        make_plan(g, dnn, shape, name);
    if (*name != 'g' || g->failed ||
        !get_one(g->plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
                 &needs) ||
        needs < 0 || (uint64_t)needs > workspace) {
        conv_graph_free(g);
        return NULL;
    }
    return g;
}

cudnnStatus_t conv_graph_play(const struct conv_graph *g, cudnnHandle_t dnn,
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
        rc = cudnnBackendExecute(dnn, g->plan, pack);
    cudnnBackendDestroyDescriptor(pack);
    return rc;
}
