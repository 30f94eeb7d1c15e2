/* launcher/plugins/diagnose/trace.c - see trace.h
 *
 * A recorder has up to 2,000 entries of 400 bytes, of which the last are of interest:
 * most others are cut out before the text is parsed.
 */
#include "launcher/plugins/diagnose/trace.h"

#include "common/json.h"
#include "common/mem.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CALLS_MAX = 16, GROUPS_MAX = 32, LAST_BYTES = 24 << 10, KEY_MAX = 64 };

static const struct {
    const char *torch, *name;
} types[] = {
    {"Float", "float32"},     {"Double", "float64"}, {"Half", "float16"},
    {"BFloat16", "bfloat16"}, {"Long", "int64"},     {"Int", "int32"},
    {"Short", "int16"},       {"Char", "int8"},      {"Byte", "uint8"},
    {"Bool", "bool"},
};

static json_t *type_names(const json_t *dtypes)
{
    json_t *names = json_array(), *type;
    size_t i;
    json_array_foreach (dtypes, i, type) {
        const char *name = json_string_value(type);
        for (size_t k = 0; name && k < ARRAY_LEN(types); k++) {
            if (strcmp(name, types[k].torch) == 0) {
                name = types[k].name;
                break;
            }
        }
        json_array_append_new(names, json_string(name ? name : "?"));
    }
    return names;
}

/* An entry is known by its first key, the same in all. */
size_t trace_shorten(char *text, size_t size)
{
    static const char list[] = "\"entries\":[";
    char key[KEY_MAX];
    if (size < 2 * LAST_BYTES)
        return size;
    char *first = memmem(text, LAST_BYTES, list, strlen(list)), *end = text + size;
    if (!first)
        return size;
    first += strlen(list);
    const char *colon = memchr(first, ':', KEY_MAX);
    size_t n = colon ? (size_t)(colon - first) : 0;
    if (n == 0 || *first != '{')
        return size;
    memcpy(key, first, n);
    char *last = memmem(end - LAST_BYTES, LAST_BYTES, key, n);
    if (!last || last <= first || last[-1] != ',')
        return size;
    memmove(first, last, (size_t)(end - last));
    return size - (size_t)(last - first);
}

/* NAME RANK,RANK: its ranks; none listed: all of the job. */
static json_t *group_ranks(const char *groups, const char *name)
{
    size_t n = strlen(name);
    for (const char *p = groups; p && *p;
         p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL) {
        if (strncmp(p, name, n) != 0 || p[n] != ' ')
            continue;
        json_t *ranks = json_array();
        for (p += n + 1; *p >= '0' && *p <= '9'; p += *p == ',') {
            char *end;
            json_array_append_new(ranks, json_integer(strtol(p, &end, 10)));
            p = end;
        }
        return ranks;
    }
    return json_array();
}

static json_int_t status_number(const json_t *status, const char *key)
{
    const char *text = text_of(status, key);
    long n = text ? strtol(text, NULL, 10) : 0;
    return n < 0 ? 0 : n == LONG_MAX ? LONG_MAX - 1 : n; /* callers look at the next */
}

/* PyTorch updates the status late: a collective that is retired is done, if those before
 * it are. `calls` is in the order of numbers. */
static json_int_t last_done(const json_t *calls, const char *group, json_int_t done)
{
    const json_t *call;
    size_t i;
    json_array_foreach (calls, i, call) {
        json_int_t number = int_of(call, "number");
        if (strcmp(text_of(call, "group"), group) == 0 && number == done + 1 &&
            is_true(call, "done"))
            done = number;
    }
    return done;
}

static json_t *call_of(const json_t *entry, int64_t now_ns, json_int_t done)
{
    const char *name = text_of(entry, "profiling_name");
    const char *colon = name ? strchr(name, ':') : NULL;
    json_int_t number = int_of(entry, "collective_seq_id");
    int64_t made = int_of(entry, "time_created_ns");
    bool retired = is_true(entry, "retired");
    json_t *sizes = json_incref(json_object_get(entry, "input_sizes"));
    return json_pack("{s:I, s:s, s:o, s:o, s:I, s:b}", "number", number, "op",
                     colon  ? colon + 1
                     : name ? name
                            : "?",
                     "sizes", sizes ? sizes : json_array(), "types",
                     type_names(json_object_get(entry, "input_dtypes")), "age_ms",
                     (json_int_t)((made < 0 ? 0 : now_ns - made) / 1000000), "done",
                     retired || number <= done);
}

/* `process_group` of an entry is [name, description]. The name is the same in all ranks,
 * the number `pg_id` may not be. */
static const char *group_id(const json_t *process_group, const char *pg_id)
{
    const char *name = json_string_value(json_array_get(process_group, 0));
    return name ? name : pg_id;
}

int trace_of_torch(const char *text, const char *groups, int64_t now_ns, json_t *rank)
{
    json_t *trace = json_loads(text, 0, NULL), *entry, *status;
    json_t *calls = json_array(), *known = json_array(), *names = json_object();
    json_t *statuses = json_object_get(trace, "pg_status");
    const char *id;
    size_t i;
    json_array_foreach (json_object_get(trace, "entries"), i, entry) {
        char group[24];
        snprintf(group, sizeof group, "%lld", (long long)int_of(entry, "pg_id"));
        json_t *name = json_object_get(entry, "process_group");
        json_object_set(names, group, name);
        if (is_true(entry, "is_p2p"))
            continue;
        json_int_t done =
            status_number(json_object_get(statuses, group), "last_completed_collective");
        json_t *call = call_of(entry, now_ns, done);
        json_object_set_new(call, "group", json_string(group_id(name, group)));
        json_array_append_new(calls, call);
        if (json_array_size(calls) > CALLS_MAX)
            json_array_remove(calls, 0);
    }
    json_object_foreach (statuses, id, status) {
        const json_t *name = json_object_get(names, id);
        const char *first = group_id(name, id);
        const char *second = json_string_value(json_array_get(name, 1));
        json_array_append_new(
            known,
            json_pack("{s:s, s:s, s:o, s:I, s:I}", "id", first, "name",
                      second ? second : "", "ranks", group_ranks(groups, first),
                      "entered", status_number(status, "last_enqueued_collective"),
                      "done",
                      last_done(calls, first,
                                status_number(status, "last_completed_collective"))));
    }
    json_decref(names);
    json_array_extend(array_in(rank, "groups"), known);
    json_array_extend(array_in(rank, "calls"), calls);
    int rc = json_is_object(statuses) ? 0 : -1;
    json_decref(known);
    json_decref(calls);
    json_decref(trace);
    return rc;
}

/* "." after a line: it is made. The default group has no ranks. A name that is no number
 * is made of the ranks, by some of them only. */
void trace_of_groups(const char *groups, int64_t age_ms, json_t *rank)
{
    json_t *made = json_array();
    bool making = false;
    unsigned begun = 0, number = 0;
    for (const char *line = groups, *end; (end = strchr(line, '\n')); line = end + 1) {
        const char *ranks = memchr(line, ' ', (size_t)(end - line));
        making = ranks != NULL;
        if (!making)
            continue;
        if (++ranks == end) {
            begun++;
            number = 0;
        } else if (strspn(line, "-0123456789") == (size_t)(ranks - 1 - line)) {
            json_array_append_new(made, json_pack("{s:o, s:s%}", "id",
                                                  json_sprintf("%u.%u", begun, ++number),
                                                  "ranks", ranks, (size_t)(end - ranks)));
        }
        if (json_array_size(made) > GROUPS_MAX)
            json_array_remove(made, 0);
    }
    json_object_set_new(rank, "made", made);
    if (making)
        json_object_set_new(rank, "making",
                            json_pack("{s:I}", "age_ms", (json_int_t)age_ms));
}

static json_int_t take_age(json_t *of, int64_t now_ns)
{
    json_int_t since = int_of(of, "since_ms"),
               ms = since < 0 ? 0 : now_ns / 1000000 - since;
    json_object_set_new(of, "age_ms", json_integer(ms));
    json_object_del(of, "since_ms");
    return ms;
}

int trace_of_library(const char *text, int64_t now_ns, json_t *rank)
{
    json_auto_t *trace = json_loads(text, 0, NULL);
    json_t *calls = json_object_get(trace, "calls"), *call,
           *message = json_object_get(trace, "message");
    size_t i;
    if (!json_is_array(calls))
        return -1;
    json_array_foreach (calls, i, call)
        take_age(call, now_ns);
    json_array_extend(array_in(rank, "calls"), calls);
    json_array_extend(array_in(rank, "groups"), json_object_get(trace, "groups"));
    if (message) {
        json_object_set_new(rank, "message_ms", json_integer(take_age(message, now_ns)));
        json_object_set(rank, "message", message);
    }
    return 0;
}
