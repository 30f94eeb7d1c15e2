/* worker/engine_find.c - choose an engine (engine.h)
 *
 * The GPU engine is a shared object, ddp-engine-cuda.so, so that ddp-train runs without
 * CUDA and a driver. It is searched beside the program, then where it is installed;
 * DDP_ENGINE names another file. It is never closed, which CUDA does not support.
 */
#include "worker/engine.h"

#include "common/err.h"
#include "common/installed.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/ddp/replica.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OBJECT "ddp-engine-cuda.so"

static void *open_object(struct ddp_err *err)
{
    const char *named = getenv("DDP_ENGINE");
    OWNED char *path =
        named && *named ? xstrdup(named) : installed_file(INSTALLED_PLUGIN, OBJECT, F_OK);
    void *object = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!path)
        err_set(err, "this build has no engine for GPUs");
    else if (!object)
        err_set(err, "%s%s", named && *named ? "DDP_ENGINE: " : "", dlerror());
    return object;
}

/* Is there a driver? Asking CUDA takes a tenth of a second. */
static bool has_driver(void)
{
    static const char *const devices[] = {"/dev/nvidiactl", "/dev/dxg", "/dev/nvmap"};
    for (size_t i = 0; i < ARRAY_LEN(devices); i++) {
        if (access(devices[i], F_OK) == 0)
            return true;
    }
    return false;
}

bool engine_may_be_cuda(const char *name)
{
    return name ? strcmp(name, "cpu") != 0 : getenv("DDP_ENGINE") || has_driver();
}

/* NULL with the reason: no driver, no object, no device. */
static const struct engine_type *cuda_engine(struct ddp_err *err)
{
    if (!getenv("DDP_ENGINE") && !has_driver()) {
        err_set(err, "no NVIDIA driver");
        return NULL;
    }
    void *object = open_object(err);
    if (!object)
        return NULL;
    const struct engine_type *type = dlsym(object, "ddp_engine");
    if (!type) {
        err_set(err, "%s", dlerror());
        return NULL;
    }
    return type->probe(err) == 0 ? type : NULL;
}

const struct engine_type *engine_find(const char *name, struct ddp_group *group,
                                      char *why, size_t size, struct ddp_err *err)
{
    int culprit;
    struct ddp_err reason = {""};
    snprintf(why, size, "asked for");
    if (name && strcmp(name, "cpu") == 0)
        return &engine_cpu;
    const struct engine_type *cuda = cuda_engine(&reason);
    if (replica_agree(group, cuda ? 0 : -1, &culprit, &reason) == 0) {
        if (!name)
            snprintf(why, size, "every rank has a GPU");
        return cuda;
    }
    if (name || culprit < 0) { /* asked for by name, or no rank to blame: no fallback */
        err_set(err, "no engine '%s': %s", name ? name : "cuda", reason.text);
        return NULL;
    }
    snprintf(why, size, "%s", reason.text);
    return &engine_cpu;
}
