/* worker/engine_find.c - choose an engine (engine.h)
 */
#include "worker/engine.h"

#include "common/err.h"
#include "worker/ddp/replica.h"
#include "worker/gpu/engine_object.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

bool engine_may_be_cuda(const char *name)
{
    return name ? strcmp(name, "cpu") != 0 : engine_object_wanted();
}

const struct engine_type *engine_find(const char *name, struct ddp_group *group,
                                      char *why, size_t size, struct ddp_err *err)
{
    int culprit;
    struct ddp_err reason = {""};
    snprintf(why, size, "asked for");
    if (name && strcmp(name, "cpu") == 0)
        return &engine_cpu;
    /* the reason why not: no driver, no object, no device */
    const struct engine_type *cuda = engine_object_symbol("ddp_engine", &reason);
    int rc = cuda ? cuda->probe(&reason) : -1;
    if (replica_agree(group, rc, &culprit, &reason) == 0) {
        if (!name)
            snprintf(why, size, "every rank has a GPU");
        return cuda;
    }
    if (culprit < 0 && ddp_barrier(group, err) < 0) /* a broken group, which says why */
        return NULL;
    if (name) {
        err_set(err, "no engine '%s': %s", name, reason.text);
        return NULL;
    }
    snprintf(why, size, "%s", reason.text);
    return &engine_cpu;
}
