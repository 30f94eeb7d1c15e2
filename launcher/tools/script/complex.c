/* launcher/tools/script/complex.c - see complex.h */
#include "launcher/tools/script/complex.h"

#include "common/err.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* The slots of "-pe NAME SLOTS". */
static int slots_of(const char *asked)
{
    const char *pe = strstr(asked, "-pe ");
    int slots = 1;
    if (pe && sscanf(pe, "-pe %*s %d", &slots) == 1 && slots > 0)
        return slots;
    return 1;
}

int complex_amount(const struct request *r, const char *asked, int *amount,
                   struct ddp_err *err)
{
    const struct site *s = r->site;
    bool whole = r->partition && r->partition->whole;
    int slots = slots_of(asked);
    int64_t all = (int64_t)r->hosts * r->gpus;
    *amount = r->gpus;
    if (s->consumable == CONSUMABLE_JOB && r->hosts > 1 && !whole)
        return err_set(
            err,
            "%s: gpu-consumable = JOB takes GPUs from the job's first host only, "
            "not from %d nodes; write -N 1, or whole-nodes = yes in the site "
            "file if a job has its nodes to itself",
            s->name, r->hosts);
    if (s->consumable != CONSUMABLE_SLOT)
        return 0;
    if (all % slots != 0)
        return err_set(
            err,
            "%s: gpu-consumable = YES is multiplied by the slots, and %d slots "
            "do not divide %d GPUs; ask for {{all_gpus}} slots in the site "
            "file's request, or write JOB or HOST as in 'qconf -sc'",
            s->name, slots, (int)all);
    *amount = (int)(all / slots);
    return 0;
}
