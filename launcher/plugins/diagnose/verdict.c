/* launcher/plugins/diagnose/verdict.c - see verdict.h
 *
 * Collectives of a group are numbered. The rank that has entered the fewest of them is
 * awaited by those that have entered more; that rank may itself wait in another group. A
 * number for which two ranks have entered different calls is a mismatch. Where nothing
 * is known of collectives, the stacks show which ranks are inside of a call.
 */
#include "launcher/plugins/diagnose/verdict.h"

#include "common/json.h"
#include "common/mem.h"
#include "launcher/plugins/diagnose/group_order.h"
#include "launcher/plugins/diagnose/messages.h"
#include "launcher/plugins/diagnose/peers.h"
#include "launcher/plugins/diagnose/sentence.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* An operation whose sizes are equal on all ranks. */
static const char *const same_sizes[] = {"all_reduce", "allreduce",      "broadcast",
                                         "reduce",     "reduce_scatter", "all_gather"};
enum { CALLS = 16 }; /* that are compared before the first which is not done */

/* --- groups ------------------------------------------------------------------------- */

/* The number of a call of this group; 0: of another. */
static json_int_t number_in(const json_t *call, const char *id)
{
    return is_text(call, "group", id) ? int_of(call, "number") : 0;
}

static const json_t *call_in(const json_t *rank, const char *id, json_int_t number)
{
    const json_t *call;
    size_t i;
    json_array_foreach (json_object_get(rank, "calls"), i, call) {
        if (number_in(call, id) == number)
            return call;
    }
    return NULL;
}

/* The lowest number after `number` that a member has a record of; 0: there is none. */
static json_int_t next_number(const struct job_view *j, const char *id, json_int_t number)
{
    json_int_t next = 0;
    for (const struct view *v = j->ranks; v < j->ranks + j->n; v++) {
        const json_t *call;
        size_t i;
        json_array_foreach (json_object_get(v->is, "calls"), i, call) {
            json_int_t its = v->member ? number_in(call, id) : 0;
            if (its > number && (next == 0 || its < next))
                next = its;
        }
    }
    return next;
}

/* A count that a rank has reported: anything. */
static json_int_t count_of(const json_t *group, const char *name)
{
    json_int_t n = int_of(group, name);
    return n < 0 ? 0 : n > INT64_MAX - 1 ? INT64_MAX - 1 : n;
}

/* Fill the views' members for this group: its ranks, and what each has entered. */
static void examine(struct job_view *j, const json_t *group)
{
    const json_t *ranks = json_object_get(group, "ranks"), *rank;
    const char *id = text_of(group, "id");
    bool all = json_array_size(ranks) == 0 && is_default(group);
    size_t i;
    for (size_t k = 0; k < j->n; k++) {
        struct view *v = &j->ranks[k];
        const json_t *own = with_id(json_object_get(v->is, "groups"), id);
        v->member = all || own;
        json_array_foreach (ranks, i, rank)
            v->member |= json_integer_value(rank) == v->rank;
        v->known = own != NULL;
        v->hidden = v->member && text_of(group, "text") && !v->known && !v->gone &&
                    !is_text(v->is, "mpi", "recorded");
        v->member = v->member && !v->hidden;
        v->unrecorded |= v->hidden;
        v->entered = count_of(own, "entered");
        v->done = count_of(own, "done");
    }
}

static bool compares_sizes(const char *op)
{
    for (size_t i = 0; op && i < ARRAY_LEN(same_sizes); i++) {
        if (strcmp(op, same_sizes[i]) == 0)
            return true;
    }
    return false;
}

static bool same(const json_t *a, const json_t *b, const char *key)
{
    const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
    return x == y || json_equal(x, y);
}

static bool same_call(const json_t *a, const json_t *b)
{
    if (!same(a, b, "op") || !same(a, b, "root"))
        return false;
    if (json_object_get(a, "bytes"))
        return same(a, b, "bytes"); /* names of types may differ */
    return same(a, b, "types") &&
           (!compares_sizes(text_of(a, "op")) || same(a, b, "sizes"));
}

/* "all_reduce (10 x float32) on ranks 0,2 at train.py:9" for each different call. */
static void print_calls(struct job_view *j, bool current, FILE *f)
{
    bool *printed = marks(j), *same = marks(j), first = true;
    for (size_t i = 0; i < j->n; i++) {
        const json_t *call = j->ranks[i].call;
        if (!call || printed[i])
            continue;
        for (size_t k = 0; k < j->n; k++) {
            same[k] = j->ranks[k].call && same_call(call, j->ranks[k].call);
            printed[k] |= same[k];
        }
        const char *op = text_of(call, "op");
        fprintf(f, "%s%s", first ? "" : ", ", op ? op : "?");
        print_operands(call, f);
        fputs(" on ", f);
        print_ranks(j, same, true, f);
        if (current)
            print_line(&j->ranks[i].at, f);
        first = false;
    }
}

/* The ranks whose call is not that of most ranks. */
static void mark_minority(const struct job_view *j, bool *mark)
{
    const struct view *v = j->ranks, *end = v + j->n;
    const json_t *best = NULL;
    size_t most = 0;
    for (v = j->ranks; v < end; v++) {
        size_t n = 0;
        for (const struct view *w = j->ranks; v->call && w < end; w++)
            n += w->call && same_call(v->call, w->call);
        best = n > most ? v->call : best;
        most = n > most ? n : most;
    }
    for (size_t i = 0; i < j->n; i++)
        mark[i] = j->ranks[i].call && !same_call(best, j->ranks[i].call);
}

/* The lowest number for which ranks have entered different calls. */
static void find_mismatch(struct job_view *j, const json_t *group)
{
    const char *id = text_of(group, "id");
    json_int_t from = 0, to = 0;
    if (j->kind)
        return;
    for (size_t i = 0; i < j->n; i++) {
        const struct view *v = &j->ranks[i];
        from = v->member && v->entered > 0 && (from == 0 || v->done < from) ? v->done + 1
                                                                            : from;
        to = v->member && v->entered > to ? v->entered : to;
    }
    json_int_t number = from > CALLS ? from - CALLS - 1 : 0;
    while ((number = next_number(j, id, number)) > 0 && number <= to) {
        const json_t *one = NULL;
        bool differ = false, current = true;
        for (struct view *v = j->ranks; v < j->ranks + j->n; v++) {
            v->call = v->member ? call_in(v->is, id, number) : NULL;
            one = one ? one : v->call;
            differ |= v->call && !same_call(one, v->call);
            current &= !v->call || v->entered == number;
        }
        if (!differ)
            continue;
        bool *mark = marks(j);
        FILE *f = sentence_open(j);
        fprintf(f, "mismatch: collective #%lld of ", (long long)number);
        print_group(group, f);
        fputs(" is ", f);
        print_calls(j, current, f);
        sentence_add(j, true);
        mark_minority(j, mark);
        set_culprits(j, mark, "mismatch");
        return;
    }
}

/* "3 of 4 ranks have waited 30 s in all_reduce #4 of the default group (...) at ..." */
static void print_waiting(const struct job_view *j, const json_t *group,
                          const bool *waits, json_int_t number, FILE *f)
{
    size_t members = 0, n = 0, first = j->n;
    json_int_t age = -1;
    const json_t *call = NULL;
    for (size_t i = 0; i < j->n; i++) {
        members += j->ranks[i].member;
        if (!waits[i])
            continue;
        const json_t *own = call_in(j->ranks[i].is, text_of(group, "id"), number);
        json_int_t ms = int_of(own, "age_ms");
        age = own && (age < 0 || ms < age) ? ms : age;
        call = call ? call : own;
        first = first == j->n || (!j->ranks[first].at.file && j->ranks[i].at.file)
                    ? i
                    : first;
        n++;
    }
    const char *op = text_of(call, "op");
    fprintf(f, "%zu of %zu ranks %s waited ", n, members, n == 1 ? "has" : "have");
    if (age >= 0)
        print_age(age, f);
    fprintf(f, "%sin %s #%lld of ", age >= 0 ? " " : "", op ? op : "a collective",
            (long long)number);
    print_group(group, f);
    print_operands(call, f);
    print_line(&j->ranks[first].at, f);
}

/* The first number that some members have not entered, and others wait in: of some
 * collectives, as MPI's broadcasts, these may have finished earlier ones. Ranks of which
 * nothing is known count as absent. */
static json_int_t awaited_number(const struct job_view *j)
{
    json_int_t entered = INT64_MAX, waiting = INT64_MAX;
    bool unknown = false;
    for (const struct view *v = j->ranks; v < j->ranks + j->n; v++) {
        if (v->member && v->known && v->entered < entered)
            entered = v->entered;
        if (v->member && v->known && v->done < v->entered && v->done < waiting)
            waiting = v->done;
        unknown |= v->member && !v->known && !v->timed_out;
    }
    bool waits = waiting < INT64_MAX && (unknown || waiting > entered);
    return (waits ? waiting : entered) + 1;
}

static bool in_call(const struct view *v)
{
    return v->at.op && !stopped(v) && !v->gone;
}

static void find_absent(struct job_view *j, const json_t *group)
{
    json_int_t number = awaited_number(j);
    size_t nwait = 0, nabsent = 0;
    bool *waits = marks(j), *absent = marks(j);
    bool reason = false, exited = true;
    for (size_t i = 0; i < j->n; i++) {
        const struct view *v = &j->ranks[i];
        waits[i] = v->member && v->entered >= number && v->done < number;
        absent[i] = v->member && v->entered < number && !v->timed_out;
        nwait += waits[i];
        nabsent += absent[i];
        if (absent[i]) {
            reason |= !in_call(v);
            exited &= v->gone != NULL;
        }
    }
    if (nwait == 0 || nabsent == 0)
        return;
    for (size_t i = 0; i < j->n; i++) {
        j->ranks[i].awaits |= waits[i];
        j->ranks[i].absent |= absent[i];
    }
    FILE *f = sentence_open(j);
    print_waiting(j, group, waits, number, f);
    fputs("; ", f);
    print_places(j, absent, "not arrived", f);
    bool first = reason && !j->kind;
    sentence_add(j, first);
    for (size_t i = 0; i < j->n; i++) /* of the absent ones, those that wait for none */
        absent[i] = absent[i] && (!reason || !in_call(&j->ranks[i]));
    if (first)
        set_culprits(j, absent, exited ? "exited" : "absent");
}

/* Every member has entered, and it does not end. */
static void find_complete(struct job_view *j, const json_t *group)
{
    json_int_t number = 0;
    size_t n = 0, nhalted = 0;
    if (j->kind)
        return;
    bool *waits = marks(j), *halted = marks(j), others = false;
    for (size_t i = 0; i < j->n; i++)
        number = j->ranks[i].member && j->ranks[i].entered > number ? j->ranks[i].entered
                                                                    : number;
    for (size_t i = 0; i < j->n; i++) {
        const struct view *v = &j->ranks[i];
        if (v->hidden)
            return;
        others |= v->timed_out;
        if (v->timed_out)
            continue;
        if (v->member && v->entered != number)
            return;
        waits[i] = v->member && v->done < number;
        halted[i] = v->member && stopped(v);
        nhalted += halted[i];
        n += waits[i];
    }
    if (n == 0)
        return;
    FILE *f = sentence_open(j);
    print_waiting(j, group, waits, number, f);
    fputs(others ? "; all others have entered it" : "; all have entered it", f);
    if (nhalted > 0) {
        fputs(", and ", f);
        print_ranks(j, halted, true, f);
        fprintf(f, " %s stopped by a signal", nhalted == 1 ? "is" : "are");
    }
    sentence_add(j, true);
    set_culprits(j, halted, nhalted > 0 ? "stopped" : "complete");
}

static void each_group(struct job_view *j,
                       void (*fn)(struct job_view *j, const json_t *group))
{
    json_auto_t *seen = json_object();
    for (size_t i = 0; i < j->n; i++) {
        const json_t *group;
        size_t k;
        json_array_foreach (json_object_get(j->ranks[i].is, "groups"), k, group) {
            const char *id = text_of(group, "id");
            if (!id || json_object_get(seen, id))
                continue;
            json_object_set_new(seen, id, json_true());
            examine(j, group);
            fn(j, group);
        }
    }
}

/* --- by stacks alone ---------------------------------------------------------------- */

/* The rank runs, and no stack shows where. */
static bool nowhere(const struct view *v)
{
    return !v->gone && !stopped(v) && !v->at.op && !v->at.function;
}

/* Ranks without a stack (a debugger had no time for them) are blamed only if every other
 * rank waits. */
static void take_nowhere(const struct job_view *j, bool *others, bool *unknown)
{
    size_t nknown = 0;
    for (size_t i = 0; i < j->n; i++)
        nknown += others[i] && !nowhere(&j->ranks[i]);
    for (size_t i = 0; nknown > 0 && i < j->n; i++) {
        unknown[i] |= others[i] && nowhere(&j->ranks[i]);
        others[i] = others[i] && !unknown[i];
    }
}

static void print_unknown(const struct job_view *j, const bool *unknown, FILE *f)
{
    if (!memchr(unknown, true, j->n))
        return;
    fputs("; of ", f);
    print_ranks(j, unknown, true, f);
    fputs(" there is no stack", f);
}

static bool differ_in_place(const struct view *a, const struct view *b)
{
    return a->at.function && b->at.function && !place_equal(&a->at, &b->at);
}

static void by_stacks(struct job_view *j)
{
    bool *waits = marks(j), *others = marks(j), *same = marks(j), *unknown = marks(j);
    size_t nwait = 0, nothers = 0, first = 0;
    for (size_t i = 0; i < j->n; i++) {
        const struct view *v = &j->ranks[i];
        waits[i] = in_call(v);
        unknown[i] = v->unrecorded && nowhere(v);
        others[i] = !waits[i] && !v->timed_out && !unknown[i];
        first = waits[i] && nwait == 0 ? i : first;
        nwait += waits[i];
        nothers += others[i];
    }
    if (nwait == 0)
        return;
    bool differ = false;
    for (size_t i = 0; i < j->n; i++) {
        same[i] = waits[i] && strcmp(j->ranks[i].at.op, j->ranks[first].at.op) == 0;
        differ |=
            waits[i] && (!same[i] || differ_in_place(&j->ranks[i], &j->ranks[first]));
    }
    FILE *f = sentence_open(j);
    if (nothers == 0 && differ) {
        fputs("mismatch? ", f);
        print_places(j, waits, "different calls", f);
        for (size_t i = 0; i < j->n; i++)
            others[i] = !same[i];
        set_culprits(j, others, "mismatch");
    } else {
        print_ranks(j, waits, false, f);
        fprintf(f, " %s in %s", nwait == 1 ? "waits" : "wait", j->ranks[first].at.op);
        print_line(&j->ranks[first].at, f);
        if (nothers > 0)
            fputs("; ", f);
        bool exited = true;
        take_nowhere(j, others, unknown);
        for (size_t i = 0; i < j->n; i++)
            exited &= !others[i] || j->ranks[i].gone;
        print_places(j, others, "not arrived", f);
        print_unknown(j, unknown, f);
        set_culprits(j, others, nothers == 0 ? "complete" : exited ? "exited" : "absent");
    }
    sentence_add(j, true);
}

/* The ranks that have waited have failed: what do those do that have not? */
static void find_late(struct job_view *j)
{
    bool *failed = marks(j), *late = marks(j);
    size_t nfailed = 0;
    for (size_t i = 0; i < j->n; i++) {
        failed[i] = j->ranks[i].timed_out;
        late[i] = !failed[i];
        nfailed += failed[i];
    }
    if (nfailed == 0 || nfailed == j->n)
        return;
    FILE *f = sentence_open(j);
    print_ranks(j, failed, true, f);
    fprintf(f, " %s failed, it seems by a timeout; ", nfailed == 1 ? "has" : "have");
    print_places(j, late, "not arrived", f);
    sentence_add(j, true);
    set_culprits(j, late, "absent");
}

static void no_wait(struct job_view *j)
{
    FILE *f = sentence_open(j);
    bool *mark = marks(j);
    memset(mark, true, j->n);
    fputs("no rank is known to wait for another: ", f);
    print_places(j, mark, NULL, f);
    sentence_add(j, true);
    j->kind = "none";
}

/* The call of MPI that it has recorded: where there is no debugger. NULL: none. */
static const char *mpi_op(const json_t *rank)
{
    const json_t *call;
    const char *op = text_of(json_object_get(rank, "message"), "op");
    size_t i;
    json_array_foreach (json_object_get(rank, "calls"), i, call) {
        const char *its = text_of(call, "op");
        if (!op && its && strncmp(its, "MPI_", 4) == 0 && is_false(call, "done"))
            op = its;
    }
    return op;
}

static void open_views(struct job_view *j, const json_t *ranks)
{
    const json_t *rank;
    size_t i;
    bool timeout = false;
    json_array_foreach (ranks, i, rank)
        timeout |= is_true(rank, "timed_out");
    j->n = json_array_size(ranks);
    j->ranks = xcalloc(j->n + 1, sizeof *j->ranks);
    json_array_foreach (ranks, i, rank) {
        struct view *v = &j->ranks[i];
        const char *exited = text_of(rank, "exited"), *state = text_of(rank, "state");
        bool ends = !exited && is_text(rank, "state", "exited");
        exited = ends ? state : exited;
        struct place at = place_of(rank);
        at.op = at.op ? at.op : mpi_op(rank);
        /* one that is about to exit runs none of the user's code */
        bool fails = is_true(rank, "timed_out") && (exited || (!at.file && !at.op));
        *v = (struct view){.is = rank,
                           .rank = (int)int_of(rank, "rank"),
                           .host = text_of(rank, "host"),
                           .state = state,
                           .gone = exited ? exited : text_of(rank, "unknown"),
                           .timed_out = ends ? timeout : fails,
                           .at = at};
        const char *host = j->ranks[0].host;
        j->hosts_differ |= host && v->host && strcmp(v->host, host) != 0;
    }
}

/* Each absent rank waits: in a collective of another group, or in a call that is no
 * collective, as new_group() or recv(). */
static void find_cycle(struct job_view *j)
{
    bool *mark = marks(j), *absent = marks(j), cycle = false;
    for (size_t i = 0; i < j->n; i++) {
        absent[i] = j->ranks[i].absent;
        mark[i] = j->ranks[i].awaits && absent[i];
        cycle |= mark[i];
    }
    if (!cycle) {
        set_culprits(j, absent, "absent");
        return;
    }
    FILE *f = sentence_open(j);
    print_ranks(j, mark, true, f);
    fputs(" wait for each other, in calls of different groups", f);
    sentence_add(j, true);
    set_culprits(j, mark, "cycle");
}

json_t *verdict(const json_t *ranks)
{
    struct job_view j = {.sentences = json_array(), .culprits = json_array()};
    open_views(&j, ranks);
    find_peers(&j);
    find_order(&j);
    each_group(&j, find_mismatch);
    if (!j.kind)
        each_group(&j, find_absent);
    if (!j.kind && json_array_size(j.sentences) > 0)
        find_cycle(&j);
    each_group(&j, find_complete);
    if (!j.kind)
        find_messages(&j);
    if (!j.kind)
        by_stacks(&j);
    if (!j.kind)
        find_late(&j);
    if (!j.kind)
        no_wait(&j);
    json_t *v = json_pack("{s:s, s:o, s:o}", "kind", j.kind, "sentences", j.sentences,
                          "ranks", j.culprits);
    json_int_t first = json_integer_value(json_array_get(j.culprits, 0));
    for (size_t i = 0; json_array_size(j.culprits) > 0 && i < j.n; i++) {
        const struct place *at = &j.ranks[i].at;
        if (j.ranks[i].rank != first || !at->function || j.ranks[i].gone)
            continue;
        json_object_set_new(v, "function", json_string(at->function));
        if (at->file) {
            json_object_set_new(v, "file", json_string(at->file));
            json_object_set_new(v, "line", json_integer(at->line));
        }
    }
    free(j.ranks);
    strv_finish(&j.arena);
    return v;
}
