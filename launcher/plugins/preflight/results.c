/* launcher/plugins/preflight/results.c - see results.h
 *
 * One flat array of findings, sorted by check and item before the comparison of keys;
 * what that adds is of a check that has been compared. 1,000 hosts with 100 libraries
 * each are 100,000 entries, which nothing may search once for each host.
 */
#include "launcher/plugins/preflight/results.h"

#include "common/hostlist.h"
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    unsigned node;
    struct msg_finding f; /* owned */
};

struct results {
    const char *const *names; /* borrowed */
    size_t nhosts;
    struct entry *list; /* owned */
    size_t n, room;
    bool *faults; /* owned: [node * CHECKS + check]; NULL before results_judge() */
};

/* NULL sorts first and equals NULL. */
static int compare_text(const char *a, const char *b)
{
    return !a || !b ? (a != NULL) - (b != NULL) : strcmp(a, b);
}

/* --- adding ------------------------------------------------------------------------- */

static bool is_number(const struct msg_finding *f)
{
    return f->check < CHECKS && checks[f->check].range && !f->problem && !f->key;
}

void results_add(struct results *b, unsigned node, struct msg_finding *f)
{
    b->list = xroom(b->list, b->n, &b->room, sizeof *b->list);
    b->list[b->n++] = (struct entry){.node = node, .f = *f};
    *f = (struct msg_finding){0};
}

static void judge_numbers(struct results *b, uint32_t check)
{
    for (size_t i = 0, n = b->n; i < n; i++) {
        const struct entry e = b->list[i];
        bool counts = e.f.check == check && is_number(&e.f);
        char *why = counts ? checks[check].fault(e.f.number) : NULL;
        struct msg_finding f = {.check = check, .problem = why};
        if (why)
            results_add(b, e.node, &f);
    }
}

/* --- mismatches --------------------------------------------------------------------- */

static int by_item(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->f.check != y->f.check)
        return x->f.check < y->f.check ? -1 : 1;
    int c = compare_text(x->f.item, y->f.item);
    return c ? c : (x->node > y->node) - (x->node < y->node);
}

/* One host's differences from the majority, over the items of a check. */
struct mismatch {
    char *names; /* owned: "libm.so.6 (...), libc.so.6 (...)"; NULL: none */
    int n;
    size_t like; /* an entry of the majority */
};

enum { NAMED = 3 };

static void add_mismatch(struct mismatch *u, const struct entry *e, size_t like)
{
    const char *name = e->f.item, *value = e->f.value;
    if (u->n++ >= NAMED)
        return;
    bool named = name && value && strstr(value, name) == NULL;
    xappendf(&u->names, "%s%s%s%s", u->names ? ", " : "", named ? name : "",
             named ? ": " : "", value ? value : "?");
    u->like = like;
}

/* Index of an entry with the most frequent key among first..last (one item, one entry per
 * host; problems have no key). On a tie the first host's. */
static size_t find_majority(const struct results *b, size_t first, size_t last)
{
    size_t best = first, most = 0;
    for (size_t i = first; i < last; i++) {
        size_t same = 0;
        const char *key = b->list[i].f.key;
        for (size_t k = first; key && k < last; k++)
            same += compare_text(key, b->list[k].f.key) == 0;
        if (same > most) {
            most = same;
            best = i;
        }
        if (most > (last - first) / 2)
            break;
    }
    return best;
}

static void judge_item(const struct results *b, size_t first, size_t last,
                       struct mismatch *mismatch)
{
    size_t best = find_majority(b, first, last);
    for (size_t i = first; i < last; i++) {
        const struct entry *e = &b->list[i];
        if (e->f.key && compare_text(e->f.key, b->list[best].f.key) != 0)
            add_mismatch(&mismatch[e->node], e, best);
    }
}

static char *hosts_text(const struct results *b, const bool *in)
{
    SCOPED(strv_finish) struct strv names = {0};
    for (size_t i = 0; i < b->nhosts; i++) {
        if (in[i])
            strv_push(&names, b->names[i]);
    }
    return hostlist_compress(names.v, names.n);
}

static char *hosts_with_key(const struct results *b, size_t like)
{
    const struct msg_finding *f = &b->list[like].f;
    OWNED bool *in = xcalloc(b->nhosts, sizeof *in);
    for (size_t i = 0; i < b->n; i++) {
        const struct msg_finding *g = &b->list[i].f;
        in[b->list[i].node] |= g->check == f->check && g->key &&
                               compare_text(g->item, f->item) == 0 &&
                               strcmp(g->key, f->key) == 0;
    }
    return hosts_text(b, in);
}

static void judge_keys(struct results *b, uint32_t check)
{
    OWNED struct mismatch *mismatch = xcalloc(b->nhosts, sizeof *mismatch);
    OWNED char *hosts = NULL; /* of the majority `like`, usually the same one */
    size_t like = SIZE_MAX;
    for (size_t i = 0, end; i < b->n; i = end) {
        for (end = i + 1; end < b->n && b->list[end].f.check == b->list[i].f.check &&
                          compare_text(b->list[end].f.item, b->list[i].f.item) == 0;
             end++)
            ;
        if (b->list[i].f.check == check)
            judge_item(b, i, end, mismatch);
    }
    for (unsigned node = 0; node < b->nhosts; node++) {
        struct mismatch *u = &mismatch[node];
        if (u->n == 0)
            continue;
        char more[40] = "";
        if (u->like != like) {
            free(hosts);
            hosts = hosts_with_key(b, like = u->like);
        }
        if (u->n > NAMED)
            snprintf(more, sizeof more, " and %d more", u->n - NAMED);
        struct msg_finding f = {.check = check,
                                .remark = checks[check].mismatch_is_remark,
                                .problem = xasprintf("%s%s, but %s on %s; %s", u->names,
                                                     more, b->list[u->like].f.value,
                                                     hosts, checks[check].mismatch)};
        results_add(b, node, &f);
        free(u->names);
    }
}

void results_judge(struct results *b)
{
    qsort(b->list, b->n, sizeof *b->list, by_item);
    for (uint32_t c = 0; c < CHECKS; c++) {
        if (checks[c].mismatch)
            judge_keys(b, c);
        if (checks[c].fault)
            judge_numbers(b, c);
    }
    qsort(b->list, b->n, sizeof *b->list, by_item);
    b->faults = xcalloc(b->nhosts * CHECKS, sizeof *b->faults);
    for (size_t i = 0; i < b->n; i++) {
        const struct entry *e = &b->list[i];
        b->faults[e->node * CHECKS + e->f.check] |= e->f.problem && !e->f.remark;
    }
}

/* --- printing ----------------------------------------------------------------------- */

static bool has_fault(const struct results *b, unsigned node, uint32_t check)
{
    return b->faults[node * CHECKS + check];
}

/* The lines of the table, collected before printing: the column width depends on them.
 */
struct row {
    uint32_t check;
    bool fault;
    char *hosts, *text; /* owned */
};
struct rows {
    struct row *v;
    size_t n;
    int width;
};

static void add_row(struct rows *rows, const struct results *b, uint32_t check,
                    const bool *in, bool fault, char *text)
{
    rows->v = xrealloc(rows->v, rows->n + 1, sizeof *rows->v);
    struct row *r = &rows->v[rows->n++];
    *r = (struct row){check, fault, hosts_text(b, in), text};
    int width = (int)strlen(r->hosts);
    rows->width = width > rows->width ? width : rows->width;
}

/* One range of the hosts without a problem, one of those with a problem. */
static void rows_of_numbers(struct rows *rows, const struct results *b, uint32_t check)
{
    for (int bad = 0; bad < 2; bad++) {
        OWNED bool *in = xcalloc(b->nhosts, sizeof *in);
        bool some = false;
        int64_t least = INT64_MAX, most = INT64_MIN;
        for (size_t i = 0; i < b->n; i++) {
            const struct entry *e = &b->list[i];
            if (e->f.check != check || !is_number(&e->f) ||
                has_fault(b, e->node, check) != bad)
                continue;
            in[e->node] = some = true;
            least = e->f.number < least ? e->f.number : least;
            most = e->f.number > most ? e->f.number : most;
        }
        if (some)
            add_row(rows, b, check, in, bad, checks[check].range(least, most));
    }
}

/* "17, equal": the number of items of each host. */
static void rows_of_counts(struct rows *rows, const struct results *b, uint32_t check)
{
    OWNED int *count = xcalloc(b->nhosts, sizeof *count);
    OWNED bool *in = xcalloc(b->nhosts, sizeof *in),
               *done = xcalloc(b->nhosts, sizeof *done);
    for (size_t i = 0; i < b->n; i++)
        count[b->list[i].node] += b->list[i].f.check == check && b->list[i].f.key;
    for (unsigned first = 0; first < b->nhosts; first++) {
        if (done[first] || count[first] == 0)
            continue;
        bool fault = has_fault(b, first, check);
        for (unsigned n = 0; n < b->nhosts; n++) {
            in[n] =
                !done[n] && count[n] == count[first] && has_fault(b, n, check) == fault;
            done[n] |= in[n];
        }
        add_row(rows, b, check, in, fault,
                xasprintf("%d%s", count[first], fault ? "" : ", equal"));
    }
}

static void rows_of_values(struct rows *rows, const struct results *b, uint32_t check)
{
    OWNED bool *done = xcalloc(b->n + 1, sizeof *done),
               *in = xcalloc(b->nhosts, sizeof *in);
    for (size_t i = 0; i < b->n; i++) {
        const struct msg_finding *f = &b->list[i].f;
        if (done[i] || f->check != check || !f->value)
            continue;
        memset(in, 0, b->nhosts * sizeof *in);
        bool fault = true; /* of the row, if every host in it has a fault */
        for (size_t k = i; k < b->n; k++) {
            const struct entry *e = &b->list[k];
            if (e->f.check != check || compare_text(e->f.value, f->value) != 0)
                continue;
            done[k] = in[e->node] = true;
            fault &= has_fault(b, e->node, check);
        }
        add_row(rows, b, check, in, fault, xstrdup(f->value));
    }
}

/* Hosts that reported a problem and no value. */
static void rows_of_problems(struct rows *rows, const struct results *b, uint32_t check)
{
    OWNED bool *in = xcalloc(b->nhosts, sizeof *in);
    bool some = false;
    for (unsigned n = 0; n < b->nhosts; n++)
        in[n] = has_fault(b, n, check);
    for (size_t i = 0; i < b->n; i++) {
        const struct entry *e = &b->list[i];
        if (e->f.check == check && (e->f.value || is_number(&e->f)))
            in[e->node] = false;
    }
    for (unsigned n = 0; n < b->nhosts; n++)
        some |= in[n];
    if (some)
        add_row(rows, b, check, in, true, xstrdup("see below"));
}

void results_table(const struct results *b, FILE *out)
{
    struct rows rows = {.width = 5};
    for (uint32_t c = 0; c < CHECKS; c++) {
        if (checks[c].count_only)
            rows_of_counts(&rows, b, c);
        else if (checks[c].range)
            rows_of_numbers(&rows, b, c);
        else
            rows_of_values(&rows, b, c);
        rows_of_problems(&rows, b, c);
    }
    rows.width = rows.width > 40 ? 40 : rows.width;
    fprintf(out, "  %-10s  %-*s  %s\n", "check", rows.width, "hosts", "found");
    for (size_t i = 0; i < rows.n; i++) {
        struct row *r = &rows.v[i];
        bool first = i == 0 || rows.v[i - 1].check != r->check;
        fprintf(out, "%c %-10s  %-*s  %s\n", r->fault ? '!' : ' ',
                first ? checks[r->check].name : "", rows.width, r->hosts, r->text);
        free(r->hosts);
        free(r->text);
    }
    free(rows.v);
}

/* --- problems ----------------------------------------------------------------------- */

static void print_problem(const struct results *b, size_t first, bool *printed, bool *in,
                          struct strv *lines)
{
    const struct msg_finding *f = &b->list[first].f;
    memset(in, 0, b->nhosts * sizeof *in);
    for (size_t k = first; k < b->n && b->list[k].f.check == f->check; k++) {
        const struct msg_finding *g = &b->list[k].f;
        if (g->problem && strcmp(g->problem, f->problem) == 0)
            printed[k] = in[b->list[k].node] = true;
    }
    OWNED char *hosts = hosts_text(b, in);
    strv_pushf(lines, "%s%s: %s: %s", f->remark ? "note: " : "", hosts,
               checks[f->check].name, f->problem);
}

size_t results_problems(const struct results *b, struct strv *lines)
{
    size_t faults = 0;
    OWNED bool *printed = xcalloc(b->n + 1, sizeof *printed),
               *in = xcalloc(b->nhosts, sizeof *in);
    for (int remarks = 0; remarks < 2; remarks++) {
        for (size_t i = 0; i < b->n; i++) {
            const struct msg_finding *f = &b->list[i].f;
            if (!f->problem || printed[i] || f->remark != remarks)
                continue;
            print_problem(b, i, printed, in, lines);
            faults += !f->remark;
        }
    }
    return faults;
}

size_t results_faulty(const struct results *b)
{
    size_t hosts = 0;
    for (size_t i = 0; i < b->nhosts; i++)
        hosts += memchr(b->faults + i * CHECKS, true, CHECKS) != NULL;
    return hosts;
}

/* --- create and destroy ------------------------------------------------------------- */

struct results *results_create(const char *const *names, size_t n)
{
    struct results *b = xcalloc(1, sizeof *b);
    b->names = names;
    b->nhosts = n;
    return b;
}

void results_destroy(struct results *b)
{
    if (!b)
        return;
    for (size_t i = 0; i < b->n; i++)
        msg_finding_finish(&b->list[i].f);
    free(b->list);
    free(b->faults);
    free(b);
}
