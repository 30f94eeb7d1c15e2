/* launcher/policy/restart.c - see restart.h */
#include "launcher/policy/restart.h"

#include "common/mem.h"

static bool may_restart(const struct cause *c)
{
    return (c->kind == CAUSE_EXIT && c->code != EXIT_NO_RESTART) ||
           c->kind == CAUSE_ABORT || c->kind == CAUSE_RESIZE ||
           (c->kind == CAUSE_HANG && c->rank >= 0) ||
           (c->kind == CAUSE_NODE && c->replaceable);
}

bool restart_asked(struct restart *r, const struct cause *c)
{
    r->moving = c->kind == CAUSE_NODE || c->kind == CAUSE_RESIZE;
    bool left = c->kind == CAUSE_RESIZE ? true
                : r->moving             ? c->replaceable
                                        : r->attempt - r->moved < r->max;
    r->pending = may_restart(c) && left;
    r->over = !may_restart(c) && left;
    return r->pending;
}

bool restart_cancelled(struct restart *r, const struct cause *c)
{
    r->moving |= c->kind == CAUSE_NODE;
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
    r->moved += r->moving;
    r->moving = false;
    r->pending = false;
}

int restart_attempts(const struct restart *r)
{
    return r->spares < 0 ? 0 : r->max + r->spares + 1;
}

static char *label(const struct restart *r, const char *before, int number)
{
    int all = restart_attempts(r);
    if (all == 0)
        return xasprintf(", %sattempt %d", before, number);
    return all > 1 ? xasprintf(", %sattempt %d of %d", before, number, all) : xstrdup("");
}

char *restart_label(const struct restart *r)
{
    return label(r, "", r->attempt + 1);
}

char *restart_label_next(const struct restart *r)
{
    return label(r, "before ", r->attempt + 2);
}
