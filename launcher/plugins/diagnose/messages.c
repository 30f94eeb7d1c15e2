/* launcher/plugins/diagnose/messages.c - see messages.h */
#include "launcher/plugins/diagnose/messages.h"

#include "common/json.h"

enum { SHOWN = 3 }; /* ranks of a circle */

/* The index of the rank from which this one wants a message; -1: unknown, or none. Views
 * are in the order of ranks. */
static long peer_of(const struct job_view *j, size_t i)
{
    const struct view *v = &j->ranks[i];
    json_int_t number = !v->gone && !stopped(v) ? v->awaited.peer : -1;
    return number >= 0 && (size_t)number < j->n ? (long)number : -1;
}

/* "rank 0 has waited 30 s in MPI_Recv for rank 1 (tag 7) at ring.c:20" */
static void print_wait(const struct view *v, FILE *f)
{
    const json_t *message = json_object_get(v->is, "message");
    fprintf(f, "rank %d has waited ", v->rank);
    print_age(int_of(message, "age_ms"), f);
    fprintf(f, " in %s", text_of(message, "op"));
    print_peer(v, f);
    print_line(&v->at, f);
}

/* With `ends` also those for which others wait, and of which only the call is known. */
static bool find_awaited(struct job_view *j, bool ends)
{
    bool *awaited = marks(j);
    size_t n = 0, first = 0, nwait = 0;
    for (size_t i = j->n; i-- > 0;) {
        long peer = peer_of(j, i);
        const struct view *v = peer >= 0 ? &j->ranks[peer] : NULL;
        bool in_call = v && v->at.op && !v->gone && !stopped(v);
        if (!v || (in_call && !(ends && peer_of(j, (size_t)peer) < 0)))
            continue;
        n += !awaited[peer];
        awaited[peer] = true;
        first = i;
        nwait++;
    }
    if (n == 0)
        return false;
    FILE *f = sentence_open(j);
    print_wait(&j->ranks[first], f);
    if (nwait > 1)
        fprintf(f, ", and %zu other%s so", nwait - 1, nwait == 2 ? "" : "s");
    fputs("; ", f);
    print_places(j, awaited, NULL, f);
    sentence_add(j, true);
    bool exited = true;
    for (size_t i = 0; i < j->n; i++)
        exited &= !awaited[i] || j->ranks[i].gone;
    set_culprits(j, awaited, exited ? "exited" : "absent");
    return true;
}

/* From one to its peer and on, until one comes again on this way: `here`. */
static void find_circle(struct job_view *j)
{
    bool *seen = marks(j), *here = marks(j), *circle = marks(j);
    for (size_t start = 0; start < j->n; start++) {
        long at = (long)start;
        for (; at >= 0 && !seen[at]; at = peer_of(j, (size_t)at))
            seen[at] = here[at] = true;
        bool found = at >= 0 && here[at];
        for (long k = (long)start; k >= 0 && here[k]; k = peer_of(j, (size_t)k))
            here[k] = false;
        if (!found)
            continue;
        size_t n = 0;
        for (long k = at; !circle[k]; k = peer_of(j, (size_t)k), n++)
            circle[k] = true;
        FILE *f = sentence_open(j);
        print_ranks(j, circle, true, f);
        fputs(n == 1 ? " waits for itself: " : " wait for each other: ", f);
        for (size_t k = 0; k < n && k < SHOWN; k++, at = peer_of(j, (size_t)at)) {
            fputs(k > 0 ? "; " : "", f);
            print_wait(&j->ranks[at], f);
        }
        if (n > SHOWN)
            fprintf(f, "; and %zu other%s", n - SHOWN, n == SHOWN + 1 ? "" : "s");
        sentence_add(j, true);
        set_culprits(j, circle, "cycle");
        return;
    }
}

void find_messages(struct job_view *j)
{
    if (find_awaited(j, false))
        return;
    find_circle(j);
    if (!j->kind)
        find_awaited(j, true);
}
