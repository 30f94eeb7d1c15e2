/* worker/kernels/kernels.c - which engines there are, and which this machine gets */
#include "worker/kernels/kernels.h"

#include "common/err.h"
#include "common/mem.h"

#include <string.h>

static const struct kernels *const engines[] = {&kernels_plain};

const struct kernels *kernels_get(const char *name, struct ddp_err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(engines); i++)
        if (name == NULL || strcmp(name, engines[i]->name) == 0)
            return engines[i];
    err_set(err, "unknown engine '%s'", name);
    return NULL;
}

const char *const *kernels_names(void)
{
    static const char *names[ARRAY_LEN(engines) + 1];
    for (size_t i = 0; i < ARRAY_LEN(engines); i++)
        names[i] = engines[i]->name;
    return names;
}

void kernels_set_threads(int n) {}
