/* launcher/plugins/diagnose/peers.c - see peers.h
 *
 * Of a communicator, two ranks and a tag, the n-th message that one sends is the n-th
 * that the other receives. So one that a rank waits for has not been sent if its number
 * is above the count of the other. A receive from any rank, or with any tag, may have
 * taken it instead: then nothing is known.
 */
#include "launcher/plugins/diagnose/peers.h"

#include "common/json.h"
#include "common/mpi_calls.h"

enum { PEER, TAG, SENT, RECEIVED }; /* elements of "messages" */

static json_int_t at(const json_t *row, size_t which)
{
    return json_integer_value(json_array_get(row, which));
}

static struct awaited awaited_of(const json_t *is)
{
    return (struct awaited){.group = json_string_value(json_array_get(is, 0)),
                            .peer = is ? at(is, 1) : -1,
                            .tag = at(is, 2),
                            .number = at(is, 3),
                            .sends = json_is_true(json_array_get(is, 4)),
                            .stray_tag = MPI_ANY};
}

static const json_t *group_of(const struct view *v, const char *id)
{
    return with_id(json_object_get(v->is, "groups"), id);
}

/* Receives from any rank, or with any tag. */
static bool may_be(const json_t *row, json_int_t peer, json_int_t tag)
{
    return (at(row, PEER) == MPI_ANY || at(row, PEER) == peer) &&
           (at(row, TAG) == MPI_ANY || at(row, TAG) == tag);
}

/* How many messages with `peer` this rank has begun to send, or to receive (`which`); -1:
 * not known. */
static json_int_t count(const struct view *v, const char *group, json_int_t peer,
                        json_int_t tag, size_t which)
{
    const json_t *own = group_of(v, group), *row;
    bool all = is_text(v->is, "counted", "all");
    json_int_t n = all ? 0 : -1;
    size_t i;
    if (!own || !text_of(v->is, "counted") || (which == RECEIVED && !all))
        return -1;
    json_array_foreach (json_object_get(own, "messages"), i, row) {
        if (at(row, PEER) == peer && at(row, TAG) == tag)
            n = at(row, which);
        else if (which == RECEIVED && may_be(row, peer, tag))
            return -1;
    }
    return n;
}

static const struct view *view_of(const struct job_view *j, json_int_t rank)
{
    return rank >= 0 && rank < (json_int_t)j->n ? &j->ranks[rank] : NULL;
}

enum met { MET, NOT_MET, UNKNOWN };

/* Has the other rank begun it, too? Not known unless both ranks count, and the one that
 * receives has not received any from any rank. Counts may pass 2^32. */
static enum met is_met(const struct job_view *j, const struct view *v,
                       const struct awaited *m)
{
    const struct view *peer = view_of(j, m->peer);
    if (!peer || m->tag == MPI_ANY || m->number == 0)
        return UNKNOWN;
    json_int_t own = count(v, m->group, m->peer, m->tag, m->sends ? SENT : RECEIVED),
               its = count(peer, m->group, v->rank, m->tag, m->sends ? RECEIVED : SENT);
    if (own < 0 || its < 0)
        return UNKNOWN;
    return (int32_t)((uint32_t)m->number - (uint32_t)its) > 0 ? NOT_MET : MET;
}

static bool waits(const struct job_view *j, json_int_t rank)
{
    const struct view *v = view_of(j, rank);
    return v && v->at.op && !v->gone && !stopped(v);
}

static void find_stray(const struct job_view *j, const struct view *v, struct awaited *m)
{
    const struct view *peer = view_of(j, m->peer);
    const json_t *group, *row;
    size_t i, k;
    if (!peer || m->sends || is_met(j, v, m) != NOT_MET)
        return;
    json_array_foreach (json_object_get(peer->is, "groups"), i, group) {
        const char *id = text_of(group, "id");
        json_array_foreach (json_object_get(group, "messages"), k, row) {
            if (!id || m->stray_tag >= 0 || at(row, PEER) != v->rank)
                continue;
            json_int_t received = count(v, id, m->peer, at(row, TAG), RECEIVED);
            if (received < 0 || at(row, SENT) <= received)
                continue;
            m->stray_tag = at(row, TAG);
            m->stray_group = strcmp(id, m->group) == 0 ? NULL : group;
        }
    }
}

/* A wait for a collective that has begun, which the sentences name. */
static bool in_collective(const struct view *v)
{
    const json_t *call;
    size_t i;
    json_array_foreach (json_object_get(v->is, "calls"), i, call) {
        if (is_false(call, "done"))
            return true;
    }
    return false;
}

/* A call without requests waits for its receive first. */
static struct awaited of_call(const struct job_view *j, const struct view *v,
                              const json_t *awaits)
{
    struct awaited first = awaited_of(json_array_get(awaits, 0));
    if (json_array_size(awaits) < 2)
        return first;
    enum met met = is_met(j, v, &first);
    return met == NOT_MET ? first
                          : awaited_of(met == MET ? json_array_get(awaits, 1) : NULL);
}

/* A receive that is not met has not ended. A send may have: MPI keeps a copy of a short
 * message. It is what the call waits for if all others are met; so is what is not known.
 */
static struct awaited of_requests(const struct job_view *j, const struct view *v,
                                  const json_t *awaits, json_int_t nrequests)
{
    struct awaited found = awaited_of(NULL), open = found;
    const json_t *is;
    size_t i, nopen = 0;
    json_array_foreach (awaits, i, is) {
        struct awaited m = awaited_of(is);
        enum met met = is_met(j, v, &m);
        if (met == MET)
            continue;
        nopen++;
        open = m;
        bool better = found.peer < 0 || (waits(j, found.peer) && !waits(j, m.peer));
        if (met == NOT_MET && !m.sends && better)
            found = m;
    }
    bool all = (json_int_t)json_array_size(awaits) == nrequests;
    return found.peer < 0 && nopen == 1 && all ? open : found;
}

static struct awaited find_awaited(const struct job_view *j, const struct view *v)
{
    const json_t *message = json_object_get(v->is, "message"),
                 *awaits = json_object_get(message, "awaits");
    json_int_t nrequests = int_of(message, "requests");
    if (nrequests == 0)
        return of_call(j, v, awaits);
    return in_collective(v) ? awaited_of(NULL) : of_requests(j, v, awaits, nrequests);
}

void find_peers(struct job_view *j)
{
    for (struct view *v = j->ranks; v < j->ranks + j->n; v++) {
        v->awaited = find_awaited(j, v);
        find_stray(j, v, &v->awaited);
    }
}
