/* launcher/policy/restart.c - see restart.h */
#include "launcher/policy/restart.h"

#include "common/mem.h"

static bool may_restart(const struct cause *c)
{
    return c->kind == CAUSE_EXIT || c->kind == CAUSE_ABORT;
}

bool restart_asked(struct restart *r, const struct cause *c)
{
    bool left = r->attempt < r->max;
    r->pending = may_restart(c) && left;
    r->over = !may_restart(c) && left;
    return r->pending;
}

bool restart_cancelled(struct restart *r, const struct cause *c)
{
    if (!r->pending || may_restart(c))
        return false;
    r->pending = false;
    r->over = true;
    return true;
}

bool restart_ignores(const struct restart *r, const struct cause *c)
{
    return r->over && may_restart(c);
}

void restart_next(struct restart *r)
{
    r->attempt++;
    r->pending = false;
}

char *restart_label(const struct restart *r)
{
    return r->max > 0 ? xasprintf(", attempt %d of %d", r->attempt + 1, r->max + 1)
                      : xstrdup("");
}
