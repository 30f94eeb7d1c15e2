/* launcher/plugins/observe/calls.c - see calls.h */
#include "launcher/plugins/observe/calls.h"

#include "common/duration.h"
#include "common/idset.h"
#include "common/json.h"
#include "common/mem.h"
#include "launcher/job/events.h"
#include "launcher/job/plugin.h"

#include <stdlib.h>
#include <string.h>

/* ms: between two questions; until a question without an answer is repeated; shorter
 * waits are not shown, they are part of every step; after this long an answer that no
 * newer one has replaced is not shown */
enum { INTERVAL_MS = 2000, ANSWER_MS = 10000, WAIT_MS = 1000, SHOWN_MS = 6000 };
/* A rank's PyTorch needs 30 ns for a byte of its answer: 0.1 % of the interval. */
enum { BYTES_PER_MS = 33 };
enum { ROWS = 16 };
#define AGE_MAX_MS INT64_C(1000000000000) /* a rank may say anything */

struct calls {
    struct job *j;      /* borrowed */
    struct rank_calls { /* the last answer about it */
        json_t *calls;  /* owned; NULL: none */
        int64_t heard_ms;
    } * ranks;           /* owned, nranks of them; NULL: there was no question yet */
    int nranks;          /* of the job at the first question */
    uint32_t id;         /* of the last question */
    char *name, *quoted; /* owned: of the last collective; its name as JSON */
    int64_t now_ms;      /* of the last request; read once, not for each rank */
    int64_t asked_ms;
    int64_t interval_ms; /* to the next */
    unsigned left;       /* nodes that have not answered it */
};

/* --- questions ---------------------------------------------------------------------- */

struct calls *calls_create(struct job *j)
{
    struct calls *c = xcalloc(1, sizeof *c);
    c->j = j;
    return c;
}

void calls_forget(struct calls *c)
{
    for (int r = 0; r < c->nranks; r++)
        json_decref(c->ranks[r].calls);
    free(c->ranks);
    free(c->name);
    free(c->quoted);
    *c = (struct calls){.j = c->j, .id = c->id};
}

void calls_destroy(struct calls *c)
{
    calls_forget(c);
    free(c);
}

void calls_ask(struct calls *c)
{
    struct job *j = c->j;
    c->now_ms = now_ms();
    int64_t passed_ms = c->now_ms - c->asked_ms;
    if (c->ranks && (passed_ms < c->interval_ms || (c->left && passed_ms < ANSWER_MS)))
        return;
    if (!c->ranks) {
        c->nranks = j->plan->nranks;
        c->ranks = xcalloc((size_t)c->nranks, sizeof *c->ranks);
    }
    c->asked_ms = c->now_ms;
    c->interval_ms = INTERVAL_MS;
    c->left = job_ask(j, MSG(ask, ASK_CALLS, ++c->id));
}

void calls_take(struct calls *c, unsigned node, const struct msg_calls *m)
{
    const json_t *rank;
    size_t i;
    if (m->id != c->id || c->left == 0 || c->j->nodes[node].place < 0)
        return; /* too late, or a spare */
    c->left--;
    json_auto_t *answer = m->text ? json_loads(m->text, 0, NULL) : NULL;
    json_array_foreach (json_object_get(answer, "ranks"), i, rank) {
        json_int_t r = int_of(rank, "rank");
        if (r < 0 || r >= c->nranks || !job_rank_is_of(c->j, (uint32_t)r, node))
            continue;
        json_decref(c->ranks[r].calls);
        c->ranks[r].calls = json_incref(json_object_get(rank, "calls"));
        c->ranks[r].heard_ms = now_ms();
    }
    int64_t ms = int_of(answer, "bytes") / BYTES_PER_MS;
    c->interval_ms = ms > c->interval_ms ? ms : c->interval_ms;
}

/* --- what is known ------------------------------------------------------------------ */

/* NULL: nothing, or it is too old. */
static const json_t *calls_of(const struct calls *c, int rank)
{
    /* none, where the plan of the next attempt was refused */
    bool known = rank < c->nranks && c->j->ranks && !c->j->ranks[rank].exited;
    return known && c->now_ms - c->ranks[rank].heard_ms < c->interval_ms + SHOWN_MS
               ? c->ranks[rank].calls
               : NULL;
}

static bool waits(const json_t *call)
{
    return is_false(call, "done");
}

/* The time since the rank entered the call. */
static int64_t age_ms(const struct calls *c, int rank, const json_t *call)
{
    int64_t ms = int_of(call, "age_ms");
    return (ms < 0            ? 0
            : ms > AGE_MAX_MS ? AGE_MAX_MS
                              : ms) +
           c->now_ms - c->ranks[rank].heard_ms;
}

static char *quoted(const char *text)
{
    json_auto_t *value = event_text(text);
    return json_dumps(value, JSON_ENCODE_ANY);
}

/* Reuses the last name, since most ranks are in the same collective. */
static void put_name(struct calls *c, const json_t *call, struct evbuffer *out)
{
    const char *name = text_or(call, "text", "");
    if (!c->name || strcmp(name, c->name) != 0) {
        free(c->name);
        free(c->quoted);
        c->name = xstrdup(name);
        c->quoted = quoted(name);
    }
    evbuffer_add(out, c->quoted, strlen(c->quoted));
}

bool calls_put_rank(struct calls *c, int rank, struct evbuffer *out)
{
    const json_t *list = calls_of(c, rank), *is = json_array_get(list, 0), *call;
    size_t i;
    for (i = 0; (call = json_array_get(list, i)) && !waits(call);)
        i++;
    is = call ? call : is; /* of those in which it waits, the last that it has entered */
    if (!is)
        return false;
    evbuffer_add(out, "[", 1);
    put_name(c, is, out);
    evbuffer_add_printf(out, ",%.1f,%s]", (double)age_ms(c, rank, is) / 1e3,
                        waits(is) ? "true" : "false");
    return true;
}

/* --- ranks that wait, and ranks that they wait for ---------------------------------- */

struct wait {
    const json_t *call; /* of the first of them; borrowed */
    struct idset ranks;
    int64_t ms; /* since the last of them has entered it */
};

static bool same(const json_t *a, const json_t *b)
{
    return int_of(a, "number") == int_of(b, "number") &&
           strcmp(text_or(a, "group", ""), text_or(b, "group", "")) == 0 &&
           strcmp(text_or(a, "text", ""), text_or(b, "text", "")) == 0;
}

static void add_wait(struct wait *rows, size_t *n, int rank, const json_t *call,
                     int64_t ms)
{
    size_t i = 0;
    while (i < *n && !same(rows[i].call, call))
        i++;
    if (i == ROWS)
        return;
    if (i == *n)
        rows[(*n)++] = (struct wait){.call = call, .ms = ms};
    idset_add(&rows[i].ranks, rank, rank);
    rows[i].ms = ms < rows[i].ms ? ms : rows[i].ms;
}

/* Has the rank entered a call of this group with this number, or a later one? */
static bool has_entered(const json_t *calls, const json_t *call, bool *member)
{
    const json_t *own;
    size_t i;
    json_array_foreach (calls, i, own) {
        if (strcmp(text_or(own, "group", ""), text_or(call, "group", "")) == 0) {
            *member = true;
            return int_of(own, "number") >= int_of(call, "number");
        }
    }
    return false;
}

/* Members that have not entered it. */
static struct idset missing(const struct calls *c, const struct wait *w)
{
    const char *text = text_or(w->call, "members", "");
    SCOPED(idset_finish) struct idset members = {0};
    struct idset set = {0};
    struct ddp_err err;
    bool all = strcmp(text, "*") == 0;
    bool listed = !all && idset_parse(text, &members, &err) == 0;
    for (int r = 0; r < c->nranks; r++) {
        bool member = all || (listed && idset_has(&members, r));
        if (!has_entered(calls_of(c, r), w->call, &member) && member)
            idset_add(&set, r, r);
    }
    return set;
}

static void put_set(const char *name, const struct idset *set, struct evbuffer *out)
{
    OWNED char *text = idset_text(set);
    evbuffer_add_printf(out, "\"%s\":\"%s\",", name, text);
}

static void put_plugins(struct calls *c, const char *comma, struct evbuffer *out)
{
    json_auto_t *list = job_waits(c->j);
    const json_t *wait;
    size_t i;
    json_array_foreach (list, i, wait) {
        evbuffer_add_printf(out, "%s{\"text\":", comma);
        put_name(c, wait, out);
        evbuffer_add_printf(out, "}");
        comma = ",";
    }
}

void calls_put_waits(struct calls *c, struct evbuffer *out)
{
    struct wait rows[ROWS];
    size_t n = 0, i;
    const json_t *call;
    for (int r = 0; r < c->nranks; r++) {
        json_array_foreach (calls_of(c, r), i, call) {
            if (waits(call) && age_ms(c, r, call) >= WAIT_MS)
                add_wait(rows, &n, r, call, age_ms(c, r, call));
        }
    }
    evbuffer_add_printf(out, "[");
    for (i = 0; i < n; i++) {
        SCOPED(idset_finish) struct idset for_whom = missing(c, &rows[i]);
        evbuffer_add_printf(out, "%s{", i ? "," : "");
        put_set("ranks", &rows[i].ranks, out);
        put_set("for", &for_whom, out);
        evbuffer_add_printf(out, "\"in\":");
        put_name(c, rows[i].call, out);
        evbuffer_add_printf(out, ",\"s\":%.1f}", (double)rows[i].ms / 1e3);
        idset_finish(&rows[i].ranks);
    }
    if (c->j->state == JOB_RUNNING)
        put_plugins(c, n ? "," : "", out);
    evbuffer_add_printf(out, "]");
}
