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

/* How many messages with `peer` this rank has begun to send, or to receive; -1: not
 * known. */
static json_int_t count(const struct view *v, const char *group, json_int_t peer,
                        json_int_t tag, size_t which)
{
    const json_t *own = group_of(v, group), *row;
    json_int_t n = is_text(v->is, "counted", "all") ? 0 : -1;
    size_t i;
    if (!own || !text_of(v->is, "counted"))
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

/* The other rank has begun fewer. */
static bool is_missing(const struct view *v, const struct view *peer,
                       const struct awaited *m)
{
    json_int_t own = count(v, m->group, m->peer, m->tag, m->sends ? SENT : RECEIVED),
               its = count(peer, m->group, v->rank, m->tag, m->sends ? RECEIVED : SENT);
    return own >= 0 && its >= 0 && m->number > its;
}

/* The higher, the more it tells; 0: nothing. */
static int value(const struct job_view *j, const struct view *v, const struct awaited *m)
{
    const struct view *peer = view_of(j, m->peer);
    if (!peer || peer->gone)
        return peer && !m->sends;
    bool waits = peer->at.op && !stopped(peer);
    return is_missing(v, peer, m) ? 2 + !waits + 2 * !m->sends : 0;
}

static void find_stray(const struct job_view *j, const struct view *v, struct awaited *m)
{
    const struct view *peer = view_of(j, m->peer);
    const json_t *group, *row;
    size_t i, k;
    if (!peer || m->sends || m->tag == MPI_ANY || !is_missing(v, peer, m))
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

static struct awaited find_awaited(const struct job_view *j, const struct view *v)
{
    const json_t *message = json_object_get(v->is, "message"),
                 *awaits = json_object_get(message, "awaits"), *is;
    json_int_t nrequests = int_of(message, "requests");
    struct awaited best = awaited_of(NULL);
    int most = 0;
    size_t i;
    if (nrequests > 0 && in_collective(v))
        return best;
    if (nrequests <= 1)
        return awaited_of(json_array_get(awaits, 0));
    json_array_foreach (awaits, i, is) {
        struct awaited m = awaited_of(is);
        int its = value(j, v, &m);
        best = its > most ? m : best;
        most = its > most ? its : most;
    }
    return best;
}

void find_peers(struct job_view *j)
{
    for (struct view *v = j->ranks; v < j->ranks + j->n; v++) {
        v->awaited = find_awaited(j, v);
        find_stray(j, v, &v->awaited);
    }
}
