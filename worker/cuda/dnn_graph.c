/* worker/cuda/dnn_graph.c - see dnn_graph.h
 *
 * Descriptors are made, given their attributes and finalised, in this order:
 *
 *         tensors ... operations
 *             operation graph ---- heuristics: configurations of engines
 *                                            plan
 *
 * A variant pack has the addresses of the tensors and the workspace.
 */
#include "worker/cuda/dnn_graph.h"

#include "common/mem.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

bool dnn_note(cudnnStatus_t rc)
{
    char why[256] = "";
    if (rc == CUDNN_STATUS_SUCCESS)
        return !cuda_failed();
#if CUDNN_MAJOR >= 9 /* the reason, in lines */
    cudnnGetLastErrorString(why, sizeof why);
    why[strcspn(why, "\n")] = '\0';
#endif
    cuda_fail("%s: cuDNN: %s%s%s", cuda_doing_now(), cudnnGetErrorString(rc),
              *why ? ": " : "", why);
    return false;
}

/* ---- descriptors ---- */

/* A descriptor without attributes. */
static cudnnBackendDescriptor_t create(struct dnn_graph *g,
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

cudnnBackendDescriptor_t dnn_make(struct dnn_graph *g, cudnnBackendDescriptorType_t type,
                                  const struct dnn_attribute *all, size_t n)
{
    cudnnBackendDescriptor_t d = create(g, type);
    for (const struct dnn_attribute *a = all; a < all + n && !g->failed; a++)
        g->failed = a->count > 0 &&
                    cudnnBackendSetAttribute(d, a->name, a->type, a->count, a->values) !=
                        CUDNN_STATUS_SUCCESS;
    if (!g->failed)
        g->failed = cudnnBackendFinalize(d) != CUDNN_STATUS_SUCCESS;
    return d;
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

void dnn_graph_free(struct dnn_graph *g)
{
    while (g->n > 0)
        cudnnBackendDestroyDescriptor(g->of[--g->n]);
    free(g->key);
    free(g);
}

cudnnBackendDescriptor_t dnn_tensor(struct dnn_graph *g, const struct dnn_tensor *is)
{
    const struct dnn_attribute all[] = {
        {CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &is->type},
        {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, is->dims},
        {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, is->strides},
        {CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &is->uid},
        {CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &is->alignment},
        {CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, is->is_virtual,
         &is->is_virtual},
        {CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, is->by_value, &is->by_value},
    };
    return dnn_make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR, all, ARRAY_LEN(all));
}

/* ---- configurations ---- */

/* Appends the results of one of cuDNN's heuristics to the list. */
static void list_by(struct dnn_graph *g, cudnnBackendDescriptor_t graph,
                    cudnnBackendHeurMode_t mode)
{
    const struct dnn_attribute all[] = {
        DNN_PART(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph),
        {CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode}};
    cudnnBackendDescriptor_t guess =
        dnn_make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, all, ARRAY_LEN(all));
    cudnnBackendDescriptor_t *first = &g->configs[g->nconfigs];
    int64_t room = MOST_CONFIGS - g->nconfigs;
    int64_t found = g->failed ? 0
                              : get(guess, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                    CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, NULL);
    found = found < room ? found : room;
    for (int64_t i = 0; i < found; i++)
        first[i] = create(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t filled = g->failed || found < 1
                         ? 0
                         : get(guess, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                               CUDNN_TYPE_BACKEND_DESCRIPTOR, found, first);
    g->nconfigs += (int)(filled < 0 ? 0 : filled < found ? filled : found);
}

struct dnn_graph *dnn_graph_make(bool tensor_cores, bool deterministic)
{
    struct dnn_graph *g = xcalloc(1, sizeof *g);
    g->tensor_cores = tensor_cores;
    g->deterministic = deterministic;
    return g;
}

void dnn_graph_list(struct dnn_graph *g, cudnnHandle_t dnn,
                    const cudnnBackendDescriptor_t *operations, int n)
{
    static const cudnnBackendHeurMode_t modes[] = {CUDNN_HEUR_MODE_A,
                                                   CUDNN_HEUR_MODE_FALLBACK};
    const struct dnn_attribute all[] = {
        {CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn},
        {CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, n, operations}};
    cudnnBackendDescriptor_t graph =
        dnn_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, all, ARRAY_LEN(all));
    bool good = !g->failed;
    for (size_t i = 0; i < ARRAY_LEN(modes) && good; i++) {
        g->failed = false; /* one heuristic may do without the other */
        list_by(g, graph, modes[i]);
    }
}

/* Accepts only engines that accumulate in the required precision, do not round their
 * operands, unless tensor cores are allowed to, and are deterministic if required. */
static bool may_take(const struct dnn_graph *g, cudnnBackendDescriptor_t config)
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
static cudnnBackendDescriptor_t make_plan(struct dnn_graph *g, cudnnHandle_t dnn,
                                          cudnnBackendDescriptor_t config)
{
    const struct dnn_attribute all[] = {
        {CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &dnn},
        DNN_PART(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config)};
    g->failed = false;
    cudnnBackendDescriptor_t plan =
        dnn_make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, all, ARRAY_LEN(all));
    return g->failed ? NULL : plan;
}

int dnn_graph_plan(struct dnn_graph *g, cudnnHandle_t dnn, int place, size_t workspace,
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

void dnn_graph_play(cudnnBackendDescriptor_t plan, cudnnHandle_t dnn, int n,
                    const int64_t *uids, const void *const *places, void *workspace)
{
    cudnnBackendDescriptor_t pack = NULL;
    DNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack));
    DNN(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                 CUDNN_TYPE_VOID_PTR, n, places));
    DNN(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
                                 CUDNN_TYPE_INT64, n, uids));
    DNN(cudnnBackendSetAttribute(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                                 CUDNN_TYPE_VOID_PTR, 1, &workspace));
    DNN(cudnnBackendFinalize(pack));
    DNN(cudnnBackendExecute(dnn, plan, pack));
    if (pack)
        cudnnBackendDestroyDescriptor(pack);
}
