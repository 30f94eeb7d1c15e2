/* launcher/plugins/diagnose/group_order.c - see group_order.h */
#include "launcher/plugins/diagnose/group_order.h"

#include "common/idset.h"
#include "common/json.h"
#include "common/scoped.h"

#include <stdlib.h>
#include <string.h>

static const json_t *made_by(const struct view *v, const char *id)
{
    return with_id(json_object_get(v->is, "made"), id);
}

static bool same_ranks(const json_t *a, const json_t *b)
{
    const json_t *x = json_object_get(a, "ranks"), *y = json_object_get(b, "ranks");
    return x == y || json_equal(x, y);
}

static void print_members(const json_t *made, FILE *f)
{
    SCOPED(idset_finish) struct idset set = {0};
    struct ddp_err err;
    const char *ranks = text_of(made, "ranks");
    if (ranks && idset_parse(ranks, &set, &err) == 0) {
        OWNED char *text = idset_text(&set);
        fprintf(f, "rank%s %s", idset_count(&set) == 1 ? "" : "s", text);
    }
}

static void report_order(struct job_view *j, const char *id)
{
    bool *alike = marks(j), *left = marks(j), *most = marks(j);
    size_t nmost = 0;
    FILE *f = sentence_open(j);
    fprintf(f, "mismatch: ranks make groups in different orders: new_group() #%s has ",
            strchr(id, '.') ? strchr(id, '.') + 1 : id);
    for (size_t i = 0; i < j->n; i++)
        left[i] = made_by(&j->ranks[i], id) != NULL;
    for (size_t i = 0, n; i < j->n; i++) {
        const json_t *made = left[i] ? made_by(&j->ranks[i], id) : NULL;
        if (!made)
            continue;
        n = 0;
        for (size_t k = i; k < j->n; k++) {
            alike[k] = left[k] && same_ranks(made, made_by(&j->ranks[k], id));
            left[k] = left[k] && !alike[k];
            n += alike[k];
        }
        fputs(nmost ? ", " : "", f);
        print_members(made, f);
        fputs(" on ", f);
        print_ranks(j, alike, true, f);
        if (json_object_get(j->ranks[i].is, "making"))
            print_line(&j->ranks[i].at, f);
        if (n > nmost)
            memcpy(most, alike, j->n);
        nmost = n > nmost ? n : nmost;
        memset(alike, false, j->n);
    }
    sentence_add(j, true);
    for (size_t i = 0; i < j->n; i++)
        alike[i] = !most[i] && made_by(&j->ranks[i], id);
    set_culprits(j, alike, "mismatch");
}

void find_order(struct job_view *j)
{
    json_auto_t *seen = json_object(); /* by id */
    const char *found = NULL;
    bool waits = false;
    for (const struct view *v = j->ranks; v < j->ranks + j->n; v++) {
        const json_t *made, *other;
        size_t i;
        waits |= v->at.op != NULL;
        json_array_foreach (json_object_get(v->is, "made"), i, made) {
            const char *id = text_of(made, "id");
            if (!id || found)
                continue;
            other = json_object_get(seen, id);
            if (!other)
                json_object_set(seen, id,
                                json_array_get(json_object_get(v->is, "made"), i));
            else if (!same_ranks(made, other))
                found = id;
        }
    }
    if (found && waits)
        report_order(j, found);
}
