/* launcher/plugins/diagnose/mpi_trace.c - see mpi_trace.h */
#include "launcher/plugins/diagnose/mpi_trace.h"

#include "common/idset.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/scoped.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MEMBERS_MAX = 4096 };

/* The file is mapped by a rank, of which a stray pointer may have overwritten it. */
static const char *call_name(uint32_t call)
{
    return call < ARRAY_LEN(mpi_calls) ? mpi_calls[call].name : "a call of MPI";
}

static json_int_t age_ms(int64_t at_ms, int64_t now_ms)
{
    return at_ms > 0 && at_ms < now_ms ? now_ms - at_ms : 0;
}

static bool is_plain(const char *text, size_t room)
{
    size_t n = strnlen(text, room);
    for (size_t i = 0; i < n; i++) {
        if (text[i] < ' ' || text[i] > '~')
            return false;
    }
    return n > 0 && n < room;
}

static json_t *ranks_of(const struct mpi_comm_record *r)
{
    json_t *ranks = json_array();
    SCOPED(idset_finish) struct idset set = {0};
    if (!is_plain(r->members, sizeof r->members) ||
        idset_parse(r->members, &set, NULL) < 0)
        return ranks;
    for (size_t i = 0; i < set.n; i++) {
        for (int k = set.spans[i].lo;
             k <= set.spans[i].hi && json_array_size(ranks) < MEMBERS_MAX; k++)
            json_array_append_new(ranks, json_integer(k));
    }
    return ranks;
}

/* "MPI_COMM_WORLD", "communicator 'rows' (ranks 0-3)". Open MPI gives names of its own to
 * those that have none, "MPI COMMUNICATOR 3 SPLIT FROM 0", by numbers that differ. */
static char *text_of_comm(const struct mpi_comm_record *r)
{
    bool named = is_plain(r->name, sizeof r->name) &&
                 strncmp(r->name, "MPI COMM", strlen("MPI COMM")) != 0;
    if (named && strncmp(r->name, "MPI_COMM_", strlen("MPI_COMM_")) == 0)
        return xstrdup(r->name);
    OWNED char *members = r->all ? xstrdup("all ranks")
                          : is_plain(r->members, sizeof r->members)
                              ? xasprintf("ranks %s", r->members)
                              : xasprintf("%u ranks", r->size);
    return named ? xasprintf("communicator '%s' (%s)", r->name, members)
                 : xasprintf("a communicator of %s", members);
}

/* `c`: one of the communicator's. */
static json_t *call_of(const struct mpi_comm_record *r, const struct mpi_call_record *c,
                       const char *id, int64_t now_ms)
{
    json_t *call =
        json_pack("{s:s, s:I, s:s, s:[], s:[], s:I, s:b}", "group", id, "number",
                  (json_int_t)c->number, "op", call_name(c->call), "sizes", "types",
                  "age_ms", age_ms(c->at_ms, now_ms), "done", r->done >= c->number);
    if (c->root >= 0)
        json_object_set_new(call, "root", json_integer(c->root));
    if (c->count < 0)
        return call;
    OWNED char *type = is_plain(c->type, sizeof c->type)
                           ? xstrndup(c->type, sizeof c->type)
                           : xasprintf("%u bytes", c->bytes);
    json_object_set_new(call, "sizes", json_pack("[[I]]", (json_int_t)c->count));
    json_object_set_new(call, "types", json_pack("[s]", type));
    json_object_set_new(call, "bytes",
                        json_integer((json_int_t)((uint64_t)c->count * c->bytes)));
    return call;
}

static void print_id(uint64_t comm, char id[static 32])
{
    snprintf(id, 32, "mpi-%llx", (unsigned long long)comm);
}

static void note_counts(const struct mpi_calls_file *f, uint64_t comm, json_t *group)
{
    for (const struct mpi_messages_record *m = f->messages;
         m < f->messages + MPI_CALLS_SLOTS && !f->uncounted; m++) {
        if (m->comm == comm)
            json_array_append_new(array_in(group, "messages"),
                                  json_pack("[i, i, I, I]", m->peer, m->tag,
                                            (json_int_t)m->sent,
                                            (json_int_t)m->received));
    }
}

static void note_awaited(const struct mpi_message_record *m, json_t *awaits)
{
    char id[32] = "";
    if (m->comm)
        print_id(m->comm, id);
    if (m->peer >= 0)
        json_array_append_new(awaits, json_pack("[s, i, i, I, b]", id, m->peer, m->tag,
                                                (json_int_t)m->number, m->sends != 0));
}

/* Of the main thread: others may do nothing else than wait for requests. */
static void note_message(const struct mpi_calls_file *f, int64_t now_ms, json_t *rank)
{
    const struct mpi_wait_record *w = &f->wait[0];
    json_int_t nrequests = w->more != 0;
    json_t *message = json_pack("{s:s, s:I}", "op", call_name(w->call), "age_ms",
                                age_ms(w->at_ms, now_ms)),
           *awaits = array_in(message, "awaits");
    note_awaited(&w->is[0], awaits);
    note_awaited(&w->is[1], awaits);
    for (uint32_t i = 0; i < w->nrequests && i < MPI_CALLS_WAITED; i++) {
        const struct mpi_request_record *r =
            &f->request[mpi_calls_hash((uint64_t)w->request[i])];
        nrequests += w->request[i] != 0;
        if (w->request[i] && r->handle == w->request[i])
            note_awaited(&r->is, awaits);
    }
    json_object_set_new(message, "requests", json_integer(nrequests));
    json_object_set_new(rank, "message", message);
}

void trace_of_mpi(const struct mpi_calls_file *f, int64_t now_ms, json_t *rank)
{
    if (f->version != MPI_CALLS_VERSION || f->comms != MPI_CALLS_COMMS ||
        f->threads != MPI_CALLS_THREADS)
        return;
    json_t *groups = array_in(rank, "groups"), *calls = array_in(rank, "calls");
    json_object_set_new(rank, "mpi", json_string(f->partly ? "partly" : "recorded"));
    for (const struct mpi_comm_record *r = f->comm; r < f->comm + MPI_CALLS_COMMS; r++) {
        char id[32];
        if (r->id == 0)
            continue;
        print_id(r->id, id);
        OWNED char *text = text_of_comm(r);
        json_t *group =
            json_pack("{s:s, s:s, s:o, s:b, s:I, s:I}", "id", id, "text", text, "ranks",
                      ranks_of(r), "all", r->all != 0, "entered", (json_int_t)r->entered,
                      "done", (json_int_t)r->done);
        note_counts(f, r->id, group);
        json_array_append_new(groups, group);
        if (r->waited.number > 0)
            json_array_append_new(calls, call_of(r, &r->waited, id, now_ms));
        if (r->last.number > 0)
            json_array_append_new(calls, call_of(r, &r->last, id, now_ms));
    }
    int64_t last_ms = 0;
    for (size_t i = 0; i < MPI_CALLS_THREADS; i++)
        last_ms = f->wait[i].at_ms > last_ms ? f->wait[i].at_ms : last_ms;
    if (last_ms > 0)
        json_object_set_new(rank, "message_ms", json_integer(age_ms(last_ms, now_ms)));
    if (f->wait[0].in)
        note_message(f, now_ms, rank);
    if (!f->uncounted)
        json_object_set_new(rank, "counted", json_string(f->full ? "some" : "all"));
}
