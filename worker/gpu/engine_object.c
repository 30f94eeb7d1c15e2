/* worker/gpu/engine_object.c - see engine_object.h */
#include "worker/gpu/engine_object.h"

#include "common/err.h"
#include "common/installed.h"
#include "common/mem.h"
#include "common/scoped.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OBJECT "ddp-engine-cuda.so"

static void *open_object(struct ddp_err *err)
{
    const char *named = getenv("DDP_ENGINE");
    OWNED char *path =
        named && *named ? xstrdup(named)
                        : installed_plugin((const void *)(uintptr_t)&open_object, OBJECT);
    void *object = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (!path)
        err_set(err, "this build has no engine for GPUs");
    else if (!object)
        err_set(err, "%s%s", named && *named ? "DDP_ENGINE: " : "", dlerror());
    return object;
}

bool engine_object_wanted(void)
{
    static const char *const devices[] = {"/dev/nvidiactl", "/dev/dxg", "/dev/nvmap"};
    bool found = getenv("DDP_ENGINE") != NULL;
    for (size_t i = 0; i < ARRAY_LEN(devices) && !found; i++)
        found = access(devices[i], F_OK) == 0;
    return found;
}

const void *engine_object_symbol(const char *symbol, struct ddp_err *err)
{
    if (!engine_object_wanted()) {
        err_set(err, "no NVIDIA driver");
        return NULL;
    }
    void *object = open_object(err);
    const char *build = object ? dlsym(object, "ddp_engine_build") : NULL;
    const void *at = build ? dlsym(object, symbol) : NULL;
    if (object && (!at || strcmp(build, ENGINE_BUILD) != 0)) {
        err_set(err,
                "the engine for GPUs (%s) is of another build than this program (%s): "
                "install both together, or unset DDP_ENGINE",
                build ? build : "unknown", ENGINE_BUILD);
        return NULL;
    }
    return at;
}
