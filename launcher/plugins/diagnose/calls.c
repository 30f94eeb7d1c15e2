/* launcher/plugins/diagnose/calls.c - see calls.h */
#include "launcher/plugins/diagnose/calls.h"

#include "common/json.h"
#include "common/mem.h"
#include "launcher/plugins/diagnose/place.h"
#include "launcher/plugins/diagnose/sentence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GROUPS_MAX = 32, MEMBERS_MAX = 200 };

/* The first of the group that is not done, else the last: `calls` is in the order of
 * numbers. NULL: none is recorded. */
static const json_t *current(const json_t *calls, const char *group)
{
    const json_t *call, *last = NULL;
    size_t i;
    json_array_foreach (calls, i, call) {
        if (!is_text(call, "group", group))
            continue;
        last = call;
        if (is_false(call, "done"))
            break;
    }
    return last;
}

/* NULL: they are not known, or too many to be listed. */
static char *members_of(const json_t *group)
{
    const json_t *list = json_object_get(group, "ranks");
    if (json_array_size(list) == 0 && is_default(group))
        return xstrdup("*");
    char *text = rank_list(list);
    if (text && strlen(text) <= MEMBERS_MAX)
        return text;
    free(text);
    return NULL;
}

static json_t *describe(const json_t *group, const json_t *call)
{
    bool done = !is_false(call, "done");
    OWNED char *members = done ? NULL : members_of(group), *text = NULL;
    const char *op = text_of(call, "op");
    size_t n;
    FILE *f = xmemstream(&text, &n);
    fprintf(f, "%s #%lld of ", op ? op : "?", (long long)int_of(call, "number"));
    print_group(group, f);
    xmemclose(f);
    return json_pack("{s:s, s:I, s:s, s:I, s:b, s:s*}", "group", text_of(group, "id"),
                     "number", int_of(call, "number"), "text", text, "age_ms",
                     int_of(call, "age_ms"), "done", done, "members", members);
}

static void insert_by_age(json_t *list, json_t *call)
{
    size_t i = 0;
    while (i < json_array_size(list) &&
           int_of(json_array_get(list, i), "age_ms") <= int_of(call, "age_ms"))
        i++;
    json_array_insert_new(list, i, call);
    if (json_array_size(list) > GROUPS_MAX)
        json_array_remove(list, GROUPS_MAX);
}

json_t *calls_of(json_t *ranks)
{
    json_t *list = json_array();
    const json_t *rank, *group;
    json_int_t bytes = 0;
    size_t i, k;
    json_array_foreach (ranks, i, rank) {
        if (json_object_get(rank, "no_calls"))
            continue;
        bytes = int_of(rank, "bytes") > bytes ? int_of(rank, "bytes") : bytes;
        json_t *calls = json_array();
        json_array_foreach (json_object_get(rank, "groups"), k, group) {
            const char *id = text_of(group, "id");
            const json_t *call = id ? current(json_object_get(rank, "calls"), id) : NULL;
            if (call)
                insert_by_age(calls, describe(group, call));
        }
        json_array_append_new(
            list, json_pack("{s:I, s:o}", "rank", int_of(rank, "rank"), "calls", calls));
    }
    json_decref(ranks);
    return json_pack("{s:I, s:o}", "bytes", bytes, "ranks", list);
}
