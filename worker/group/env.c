/* worker/group/env.c - see env.h */
#include "worker/group/env.h"

#include "common/ambient_launcher.h"
#include "common/err.h"

#include <stdlib.h>

const char *env_get(const char *name)
{
    return getenv(name);
}

int env_place(struct env_place *place, const char *(*get)(const char *name),
              struct ddp_err *err)
{
    *place = (struct env_place){.size = 1, .local_rank = -1};
    const struct ambient_launcher *s = ambient_launcher_find(get);
    const char *task = s ? NULL : ambient_launcher_pbs_task(get);
    if (task)
        return err_set(
            err,
            "PBS_TASKNUM=%s: one of the tasks that pbsdsh has started, and it "
            "does not say how many they are; start them by ddprun, or set RANK=0 "
            "and WORLD_SIZE=1 if it is the only one",
            task);
    if (!s)
        return 0;
    if (ambient_launcher_place(s, get, &place->rank, &place->size, &place->local_rank,
                               err) < 0)
        return -1;
    place->launcher = s->name;
    return 0;
}

bool env_makes_no_store(const char *(*get)(const char *name))
{
    const struct ambient_launcher *s = ambient_launcher_find(get);
    return s && s != &ambient_launchers[0];
}
