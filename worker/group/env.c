/* worker/group/env.c - see env.h */
#include "worker/group/env.h"

#include "common/starter.h"

#include <stdlib.h>

const char *env_get(const char *name)
{
    return getenv(name);
}

int env_place(struct env_place *place, const char *(*get)(const char *name),
              struct ddp_err *err)
{
    *place = (struct env_place){.size = 1, .local_rank = -1};
    const struct starter *s = starter_find(get);
    if (!s)
        return 0;
    if (starter_place(s, get, &place->rank, &place->size, &place->local_rank, err) < 0)
        return -1;
    place->launcher = s->name;
    return 0;
}

bool env_makes_no_store(const char *(*get)(const char *name))
{
    const struct starter *s = starter_find(get);
    return s && s != &starters[0];
}
