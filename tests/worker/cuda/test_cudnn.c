/* The convolutions and attention of our models, planned by cuDNN itself: since 9.8 it
 * needs no GPU for that, only a description of one ("deviceless ahead-of-time
 * compilation"). The calls that take a handle are wrapped (meson.build), and pass the
 * description instead; so is that for memory. Nothing is executed. */
#define CASE_SECONDS 600
#include "tests/support/suite.h"

#include "common/mem.h"
#include "common/scoped.h"
#include "worker/cuda/layers_impl.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* Published figures of an A100 and an H100. */
static const struct {
    int arch, processors, l2, shared;
} gpus[] = {{800, 108, 40 << 20, 166912}, {900, 132, 50 << 20, 232448}};

static const struct {
    const char *name;
    struct io_shape io;
} models[] = {{"cnn", {1, 28, 28, 10}},
              {"resnet18", {3, 32, 32, 10}},
              {"resnet50", {3, 32, 32, 10}},
              {"resnet50", {3, 224, 224, 1000}}};

#pragma GCC diagnostic ignored "-Wmissing-prototypes" /* of what only the linker calls \
                                                       */

static cudnnBackendDescriptor_t gpu; /* the described one */

cudnnStatus_t __wrap_cudnnCreate(cudnnHandle_t *h)
{
    *h = NULL;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t __wrap_cudnnDestroy(cudnnHandle_t h)
{
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t __wrap_cudnnSetStream(cudnnHandle_t h, cudaStream_t stream)
{
    return CUDNN_STATUS_SUCCESS;
}

cudaError_t __wrap_cudaMemcpy(void *to, const void *from, size_t n,
                              enum cudaMemcpyKind kind)
{
    return cudaSuccess;
}

cudaError_t __wrap_cudaMemsetAsync(void *to, int value, size_t n, cudaStream_t stream)
{
    return cudaSuccess;
}

void *__wrap_device_alloc(struct resources *m, const char *what, size_t bytes)
{
    return &gpu; /* not used */
}

cudnnStatus_t __real_cudnnBackendSetAttribute(cudnnBackendDescriptor_t,
                                              cudnnBackendAttributeName_t,
                                              cudnnBackendAttributeType_t, int64_t,
                                              const void *);

cudnnStatus_t __wrap_cudnnBackendSetAttribute(cudnnBackendDescriptor_t d,
                                              cudnnBackendAttributeName_t name,
                                              cudnnBackendAttributeType_t type,
                                              int64_t count, const void *values)
{
    cudnnBackendAttributeName_t of_gpu = name == CUDNN_ATTR_ENGINEHEUR_MODE
                                             ? CUDNN_ATTR_ENGINEHEUR_DEVICEPROP
                                             : CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP;
    if (name == CUDNN_ATTR_OPERATIONGRAPH_HANDLE)
        return CUDNN_STATUS_SUCCESS;
    if (name == CUDNN_ATTR_ENGINEHEUR_MODE || name == CUDNN_ATTR_EXECUTION_PLAN_HANDLE)
        ck_assert_int_eq(__real_cudnnBackendSetAttribute(
                             d, of_gpu, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &gpu),
                         CUDNN_STATUS_SUCCESS);
    return name == CUDNN_ATTR_EXECUTION_PLAN_HANDLE
               ? CUDNN_STATUS_SUCCESS
               : __real_cudnnBackendSetAttribute(d, name, type, count, values);
}

static void describe_gpu(int which)
{
    OWNED char *text = xasprintf(
        "{\"deviceName\":\"\",\"cudaDeviceId\":0,\"pciDeviceId\":0,\"driverVer\":13000,"
        "\"deviceVer\":%d,\"multiProcessorCount\":%d,\"l2CacheSize\":%d,"
        "\"maxSharedMemoryPerBlockOptin\":%d,\"maxSharedMemoryPerBlock\":49152,"
        "\"reservedSharedMemoryPerBlock\":1024,\"totalGlobalMem\":85899345920,"
        "\"smClockRateKHz\":1410000,\"memClockRateKHz\":1215000,\"warpSize\":32,"
        "\"regsPerBlock\":65536,\"maxRegistersPerSM\":65536,\"maxCtasPerSM\":32,"
        "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"isTccDriver\":0,"
        "\"supportCoopLaunch\":1,\"maxGridSize\":[2147483647,65535,65535],"
        "\"maxBlockSize\":[1024,1024,64]}",
        gpus[which].arch, gpus[which].processors, gpus[which].l2, gpus[which].shared);
    struct ddp_err err;
    cuda_doing("gpu");
    DNN(cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, &gpu));
    DNN(__real_cudnnBackendSetAttribute(gpu, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                        CUDNN_TYPE_CHAR, (int64_t)strlen(text), text));
    DNN(cudnnBackendFinalize(gpu));
    ck_ok(cuda_outcome(&err), err);
}

/* `one` is called for each product. */
static void plan_model(const char *name, struct io_shape io,
                       struct layers_settings settings, product_fn one)
{
    struct ddp_err err;
    struct resources memory = {0};
    struct model_type *type = model_type_find(name, &err);
    ck_assert_msg(type, "%s", err.text);
    struct model *model = model_plan(type, io, settings.max_batch,
                                     kernels_get(NULL, PRECISION_FP32, &err), &err);
    ck_assert_msg(model, "%s", err.text);
    struct layers *net = layers_create(model, settings, NULL, &memory, NULL);
    ck_assert_msg(cuda_outcome(&err) == 0, "%s %s: %s", name,
                  precision_names[settings.precision], err.text);
    if (one)
        layers_each_product(net, layers_plan(net, settings.max_batch), one, NULL);
    layers_destroy(net);
    model_destroy(model);
    model_type_free(type);
}

static void attends(struct layers *net, const struct site *at, void *arg)
{
    ck_assert_msg(at->layer->spec->kind != LAYER_ATTENTION ||
                      at->plan->how[at->pass].plan,
                  "cuDNN does not take '%s'", at->key);
}

/* Each has an engine, and one for steps that are deterministic. */
LOOP_TEST(cudnn_plans_convolutions, ARRAY_LEN(gpus))
{
    /* each plan opens and closes it: keep it open, which takes a third of the time */
    OWNED char *compiler = xasprintf("libnvrtc.so.%d", CUDART_VERSION / 1000);
    dlopen(compiler, RTLD_LAZY);
    describe_gpu(_i);
    for (size_t m = 0; m < ARRAY_LEN(models); m++)
        for (int p = 0; precision_names[p]; p++)
            for (int i = 0; i < 2; i++)
                plan_model(models[m].name, models[m].io,
                           (struct layers_settings){.max_batch = 32,
                                                    .precision = (enum precision)p,
                                                    .deterministic = i > 0},
                           NULL);
    cudnnBackendDestroyDescriptor(gpu);
}

/* Grouped heads, any number of tokens, larger workspaces, and none that varies. */
LOOP_TEST(cudnn_plans_attention, ARRAY_LEN(gpus))
{
    static const char *const texts[] = {"gpt2:layers=1", "gpt2:layers=1,context=99",
                                        "llama:layers=1",
                                        "llama:layers=1,heads=8,kv_heads=2,width=512"};
    ck_assert_msg(dlopen("libcuda.so.1", RTLD_LAZY), "%s", dlerror());
    describe_gpu(_i);
    for (size_t m = 0; m < ARRAY_LEN(texts); m++)
        for (int i = 0; i < 4; i++) {
            struct ddp_err err;
            struct model_type *type = model_type_find(texts[m], &err);
            ck_assert_msg(type, "%s", err.text);
            plan_model(texts[m], (struct io_shape){1, 1, type->context, type->vocabulary},
                       (struct layers_settings){.max_batch = 16,
                                                .precision = i % 2 ? PRECISION_BF16
                                                                   : PRECISION_FP16,
                                                .deterministic = i / 2},
                       attends);
            model_type_free(type);
        }
    cudnnBackendDestroyDescriptor(gpu);
}
