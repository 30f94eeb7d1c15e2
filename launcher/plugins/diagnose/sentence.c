/* launcher/plugins/diagnose/sentence.c - see sentence.h */
#include "launcher/plugins/diagnose/sentence.h"

#include "common/idset.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/number.h"

#include <stdlib.h>
#include <string.h>

enum { PLACES_MAX = 3 }; /* described in a sentence */

bool *marks(struct job_view *j)
{
    bool *m = xcalloc(j->n + 1, sizeof *m);
    strv_push_nodup(&j->arena, (char *)m);
    return m;
}

bool stopped(const struct view *v)
{
    return v->state && strncmp(v->state, "stopped", strlen("stopped")) == 0;
}

FILE *sentence_open(struct job_view *j)
{
    return j->sentence = xmemstream(&j->text, &j->ntext);
}

void sentence_add(struct job_view *j, bool first)
{
    xmemclose(j->sentence);
    json_array_insert_new(j->sentences, first ? 0 : json_array_size(j->sentences),
                          json_string(j->text));
    free(j->text);
}

void print_age(json_int_t ms, FILE *f)
{
    if (ms < 60000)
        fprintf(f, "%lld s", (long long)ms / 1000);
    else if (ms < 7200000)
        fprintf(f, "%lld min", (long long)ms / 60000);
    else
        fprintf(f, "%lld h", (long long)ms / 3600000);
}

void print_ranks(const struct job_view *j, const bool *mark, bool hosts, FILE *f)
{
    SCOPED(idset_finish) struct idset set = {0};
    const char *host = NULL;
    size_t n = 0;
    for (size_t i = 0; i < j->n; i++) {
        if (!mark[i])
            continue;
        idset_add(&set, j->ranks[i].rank, j->ranks[i].rank);
        host =
            n++ == 0 || (host && j->ranks[i].host && strcmp(host, j->ranks[i].host) == 0)
                ? j->ranks[i].host
                : NULL;
    }
    OWNED char *text = idset_text(&set);
    fprintf(f, "rank%s %s", n == 1 ? "" : "s", text);
    if (hosts && j->hosts_differ && host)
        fprintf(f, " on %s", host);
}

void print_operands(const json_t *call, FILE *f)
{
    const json_t *sizes = json_object_get(call, "sizes"), *size, *dim;
    const char *type =
        json_string_value(json_array_get(json_object_get(call, "types"), 0));
    uint64_t total = 0;
    size_t i, k;
    const json_t *root = json_object_get(call, "root");
    if (json_array_size(sizes) == 0 && !root)
        return;
    json_array_foreach (sizes, i, size) {
        uint64_t product = 1;
        json_array_foreach (size, k, dim)
            product *= (uint64_t)json_integer_value(dim);
        total += product;
    }
    fputs(" (", f);
    if (json_array_size(sizes) > 0)
        fprintf(f, "%s x %s%s", number_grouped(total).text, type ? type : "?",
                root ? ", " : "");
    if (root)
        fprintf(f, "root %lld", (long long)json_integer_value(root));
    fputc(')', f);
}

bool is_default(const json_t *group)
{
    return is_text(group, "name", "default_pg") || is_true(group, "all");
}

char *rank_list(const json_t *ranks)
{
    SCOPED(idset_finish) struct idset set = {0};
    const json_t *rank;
    size_t i;
    json_array_foreach (ranks, i, rank) {
        json_int_t r = json_integer_value(rank);
        if (r >= 0 && r < IDSET_MAX)
            idset_add(&set, (int)r, (int)r);
    }
    return set.n > 0 ? idset_text(&set) : NULL;
}

void print_group(const json_t *group, FILE *f)
{
    const char *id = text_of(group, "id"), *name = text_of(group, "name"),
               *text = text_of(group, "text");
    if (text) {
        fputs(text, f);
    } else if (is_default(group)) {
        fputs("the default group", f);
    } else if (name && *name && strcmp(name, "undefined") != 0) {
        fprintf(f, "group '%s'", name);
    } else {
        OWNED char *ranks = rank_list(json_object_get(group, "ranks"));
        if (ranks)
            fprintf(f, "the group of ranks %s", ranks);
        else
            fprintf(f, "group %s", id ? id : "?");
    }
}

void print_line(const struct place *at, FILE *f)
{
    struct place line = *at;
    line.function = "<module>";
    if (!line.file)
        return;
    fputc(' ', f);
    place_print(&line, f);
}

void print_peer(const struct view *v, FILE *f)
{
    const struct awaited *m = &v->awaited;
    if (m->peer < 0)
        return;
    fprintf(f, " for rank %lld%s", (long long)m->peer, m->sends ? " to receive" : "");
    if (m->tag < 0)
        return;
    fprintf(f, " (tag %lld", (long long)m->tag);
    if (m->stray_tag >= 0)
        fprintf(f, "; it has sent one with tag %lld", (long long)m->stray_tag);
    if (m->stray_group) {
        fputs(" in ", f);
        print_group(m->stray_group, f);
    }
    fputc(')', f);
}

/* "in load() at data.py:10 (sleeping)", "stopped (SIGSTOP)", ... */
static void print_whereabouts(const struct view *v, FILE *f)
{
    const char *why = text_of(v->is, "no_stacks");
    if (v->gone) {
        fputs(v->gone, f);
    } else if (stopped(v)) {
        fprintf(f, "%s by a signal", v->state);
    } else if (v->at.op) {
        fprintf(f, "waiting in %s", v->at.op);
        print_peer(v, f);
        print_line(&v->at, f);
    } else if (v->at.function) {
        place_print(&v->at, f);
        fprintf(f, " (%s)", v->state);
    } else {
        fprintf(f, "%s%s%s", v->state ? v->state : "unknown", why ? ", no stack: " : "",
                why ? why : "");
    }
}

static bool same_message(const struct awaited *a, const struct awaited *b)
{
    return a->peer == b->peer && a->tag == b->tag && a->sends == b->sends &&
           a->stray_tag == b->stray_tag && a->stray_group == b->stray_group;
}

static bool alike(const struct view *a, const struct view *b)
{
    if (a->gone || b->gone)
        return a->gone && b->gone && strcmp(a->gone, b->gone) == 0;
    if (stopped(a) || stopped(b))
        return stopped(a) && stopped(b);
    if (!a->at.op != !b->at.op || (a->at.op && strcmp(a->at.op, b->at.op) != 0) ||
        !same_message(&a->awaited, &b->awaited))
        return false;
    if (a->at.function || b->at.function)
        return place_equal(&a->at, &b->at);
    return a->state == b->state ||
           (a->state && b->state && strcmp(a->state, b->state) == 0);
}

/* Move the marks of the ranks that are where rank `i` is from `mark` to `same`; returns
 * how many there are. */
static size_t take_alike(const struct job_view *j, size_t i, bool *mark, bool *same)
{
    size_t n = 0;
    for (size_t k = j->n; k-- > 0;) { /* `i` last: its mark is needed until then */
        same[k] = mark[i] && mark[k] && k >= i && alike(&j->ranks[i], &j->ranks[k]);
        n += same[k];
        mark[k] = mark[k] && !same[k];
    }
    return n;
}

void print_places(struct job_view *j, const bool *mark, const char *verb, FILE *f)
{
    size_t places = 0;
    bool *left = marks(j), *same = marks(j);
    memcpy(left, mark, j->n);
    for (size_t i = 0; i < j->n; i++) {
        size_t n = take_alike(j, i, left, same);
        if (n == 0 || ++places > PLACES_MAX)
            continue;
        fputs(places > 1 ? "; " : "", f);
        print_ranks(j, same, true, f);
        const struct view *v = &j->ranks[i];
        if (v->gone)
            fprintf(f, " %s ", n == 1 ? "has" : "have");
        else if (verb)
            fprintf(f, " %s %s: %s ", n == 1 ? "has" : "have", verb,
                    n == 1 ? "it is" : "they are");
        else
            fprintf(f, " %s ", n == 1 ? "is" : "are");
        print_whereabouts(v, f);
    }
    if (places > PLACES_MAX)
        fprintf(f, "; and %zu other place%s", places - PLACES_MAX,
                places == PLACES_MAX + 1 ? "" : "s");
}

void set_culprits(struct job_view *j, const bool *mark, const char *kind)
{
    json_array_clear(j->culprits);
    for (size_t i = 0; i < j->n; i++) {
        if (mark[i])
            json_array_append_new(j->culprits, json_integer(j->ranks[i].rank));
    }
    j->kind = kind;
}
