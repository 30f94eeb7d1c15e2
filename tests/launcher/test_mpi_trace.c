/* What ranks of MPI have recorded, and what a hang report says of it. */
#include "tests/support/suite.h"

#include "launcher/plugins/diagnose/collect.h"
#include "launcher/plugins/diagnose/mpi_trace.h"
#include "launcher/plugins/diagnose/verdict.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOW_MS = 90500, ENTERED_MS = 60000, RANKS = 4, WORLD = 5, PART = 7, NOBODY = -1 };

/* A rank: numbers of a communicator and its last call, or a message that it waits for. */
struct is {
    const char *call; /* NULL: it has exited */
    int entered, done;
    const char *type; /* of two elements; NULL: none */
    int bytes, peer, root;
    bool stopped, part; /* its communicator is not MPI_COMM_WORLD */
};
#define IN(name, number)                                                \
    {                                                                   \
        .call = name, .entered = number, .done = (number)-1, .root = -1 \
    }
#define IN_PART(name, number, at)                                                     \
    {                                                                                 \
        .call = name, .entered = number, .done = (number)-1, .root = at, .part = true \
    }
#define CAST(at)                                                 \
    {                                                            \
        .call = "MPI_Bcast", .entered = 2, .done = 1, .root = at \
    }
#define SUM(name, size)                                                                \
    {                                                                                  \
        .call = "MPI_Allreduce", .entered = 2, .done = 1, .type = name, .bytes = size, \
        .root = -1                                                                     \
    }
#define RECEIVES(from)                   \
    {                                    \
        .call = "MPI_Recv", .peer = from \
    }
#define HALTED(from)                                      \
    {                                                     \
        .call = "MPI_Recv", .peer = from, .stopped = true \
    }
#define COMPUTES(n)                                                \
    {                                                              \
        .call = "MPI_Barrier", .entered = n, .done = n, .root = -1 \
    }
#define STOPPED(n)                                                                  \
    {                                                                               \
        .call = "MPI_Barrier", .entered = n, .done = n, .root = -1, .stopped = true \
    }
#define EXITED       \
    {                \
        .call = NULL \
    }

static uint32_t row_of(const char *name)
{
    for (uint32_t i = 0; i < sizeof mpi_calls / sizeof *mpi_calls; i++) {
        if (strcmp(mpi_calls[i].name, name) == 0)
            return i;
    }
    ck_abort_msg("no row for %s", name);
}

static void record(struct mpi_calls_file *f, const struct is *is)
{
    *f = (struct mpi_calls_file){.version = MPI_CALLS_VERSION,
                                 .comms = MPI_CALLS_COMMS,
                                 .threads = MPI_CALLS_THREADS};
    if (is->entered == 0) {
        f->wait[0].call = row_of(is->call);
        f->wait[0].in = 1;
        f->wait[0].at_ms = ENTERED_MS;
        f->wait[0].is[0] = (struct mpi_message_record){.peer = is->peer, .tag = 7};
        f->wait[0].is[1].peer = NOBODY;
        return;
    }
    struct mpi_comm_record *r = &f->comm[3];
    *r = (struct mpi_comm_record){.id = is->part ? PART : WORLD,
                                  .entered = (uint64_t)is->entered,
                                  .done = (uint64_t)is->done,
                                  .last = {.number = (uint64_t)is->entered,
                                           .at_ms = ENTERED_MS,
                                           .call = row_of(is->call),
                                           .root = is->root,
                                           .count = is->type ? 2 : -1,
                                           .bytes = (uint32_t)is->bytes},
                                  .size = is->part ? 2 : RANKS,
                                  .all = !is->part};
    snprintf(r->last.type, sizeof r->last.type, "%s", is->type ? is->type : "");
    snprintf(r->name, sizeof r->name, "%s", is->part ? "rows" : "MPI_COMM_WORLD");
    snprintf(r->members, sizeof r->members, "%s", is->part ? "1,3" : "");
}

static json_t *trace_of(int rank, const struct is *is)
{
    static struct mpi_calls_file f;
    if (!is->call)
        return json_pack("{s:i, s:s, s:s}", "rank", rank, "host", "a", "exited",
                         "exited with status 0");
    json_t *o = json_pack("{s:i, s:s, s:s}", "rank", rank, "host", "a", "state",
                          is->stopped ? "stopped" : "running");
    json_object_set_new(o, "stopped", json_boolean(is->stopped));
    record(&f, is);
    trace_of_mpi(&f, NOW_MS, o);
    return o;
}

static const struct {
    struct is is[RANKS];
    const char *kind, *sentence, *culprits;
} cases[] = {
    /* who sends is done with a broadcast before others have come to it */
    {{IN("MPI_Barrier", 3), COMPUTES(1), IN("MPI_Barrier", 3), IN("MPI_Barrier", 3)},
     "absent",
     "3 of 4 ranks have waited 30 s in MPI_Barrier #3 of MPI_COMM_WORLD; rank 1 has not "
     "arrived: it is running",
     "[1]"},
    {{IN("MPI_Barrier", 3), IN("MPI_Barrier", 3), IN("MPI_Barrier", 3),
      IN("MPI_Barrier", 3)},
     "complete",
     "4 of 4 ranks have waited 30 s in MPI_Barrier #3 of MPI_COMM_WORLD; all have entered it",
     "[]"},
    /* types are compared by their sizes */
    {{SUM("MPI_INT", 4), SUM("MPI_INTEGER", 4), SUM("MPI_DOUBLE", 8), SUM("MPI_INT", 4)},
     "mismatch",
     "mismatch: collective #2 of MPI_COMM_WORLD is MPI_Allreduce (2 x MPI_INT) on ranks "
     "0-1,3, MPI_Allreduce (2 x MPI_DOUBLE) on rank 2",
     "[2]"},
    {{SUM("", 12), IN("MPI_Barrier", 2), SUM("", 12), SUM("", 12)},
     "mismatch",
     "mismatch: collective #2 of MPI_COMM_WORLD is MPI_Allreduce (2 x 12 bytes) on ranks "
     "0,2-3, MPI_Barrier on rank 1",
     "[1]"},
    {{IN("MPI_Barrier", 2), RECEIVES(0), IN("MPI_Barrier", 2), IN("MPI_Barrier", 2)},
     "absent",
     "3 of 4 ranks have waited 30 s in MPI_Barrier #2 of MPI_COMM_WORLD; rank 1 has not "
     "arrived: it is waiting in MPI_Recv for rank 0 (tag 7)",
     "[1]"},
    {{CAST(0), CAST(0), CAST(3), CAST(0)},
     "mismatch",
     "mismatch: collective #2 of MPI_COMM_WORLD is MPI_Bcast (root 0) on ranks 0-1,3, "
     "MPI_Bcast (root 3) on rank 2",
     "[2]"},
    {{COMPUTES(2), IN_PART("MPI_Bcast", 5, 1), COMPUTES(2), STOPPED(2)},
     "absent",
     "1 of 2 ranks has waited 30 s in MPI_Bcast #5 of communicator 'rows' (ranks 1,3) "
     "(root 1); rank 3 has not arrived: it is stopped by a signal",
     "[3]"},
    {{RECEIVES(1), COMPUTES(1), RECEIVES(1), RECEIVES(0)},
     "absent",
     "rank 0 has waited 30 s in MPI_Recv for rank 1 (tag 7), and 1 other so; rank 1 is "
     "running",
     "[1]"},
    {{COMPUTES(1), RECEIVES(0), COMPUTES(1), COMPUTES(1)},
     "absent",
     "rank 1 has waited 30 s in MPI_Recv for rank 0 (tag 7); rank 0 is running",
     "[0]"},
    {{COMPUTES(1), RECEIVES(3), RECEIVES(0), COMPUTES(1)},
     "absent",
     "rank 1 has waited 30 s in MPI_Recv for rank 3 (tag 7), and 1 other so; ranks 0,3 are "
     "running",
     "[0,3]"},
    {{COMPUTES(1), EXITED, RECEIVES(1), COMPUTES(1)},
     "exited",
     "rank 2 has waited 30 s in MPI_Recv for rank 1 (tag 7); rank 1 has exited with status "
     "0",
     "[1]"},
    {{RECEIVES(3), EXITED, RECEIVES(1), COMPUTES(1)},
     "absent",
     "rank 0 has waited 30 s in MPI_Recv for rank 3 (tag 7), and 1 other so; rank 1 has "
     "exited with status 0; rank 3 is running",
     "[1,3]"},
    {{HALTED(3), RECEIVES(0), COMPUTES(1), COMPUTES(1)},
     "absent",
     "rank 1 has waited 30 s in MPI_Recv for rank 0 (tag 7); rank 0 is stopped by a signal",
     "[0]"},
    {{RECEIVES(1), RECEIVES(2), RECEIVES(3), RECEIVES(0)},
     "cycle",
     "ranks 0-3 wait for each other: rank 0 has waited 30 s in MPI_Recv for rank 1 (tag "
     "7); rank 1 has waited 30 s in MPI_Recv for rank 2 (tag 7); rank 2 has waited 30 s in "
     "MPI_Recv for rank 3 (tag 7); and 1 other",
     "[0,1,2,3]"},
    {{RECEIVES(1), RECEIVES(2), RECEIVES(1), RECEIVES(1)},
     "cycle",
     "ranks 1-2 wait for each other: rank 1 has waited 30 s in MPI_Recv for rank 2 (tag "
     "7); rank 2 has waited 30 s in MPI_Recv for rank 1 (tag 7)",
     "[1,2]"},
    {{RECEIVES(0), RECEIVES(0), RECEIVES(0), RECEIVES(0)},
     "cycle",
     "rank 0 waits for itself: rank 0 has waited 30 s in MPI_Recv for rank 0 (tag 7)",
     "[0]"},
    {{RECEIVES(1), RECEIVES(2), RECEIVES(NOBODY), RECEIVES(0)},
     "absent",
     "rank 1 has waited 30 s in MPI_Recv for rank 2 (tag 7); rank 2 is waiting in MPI_Recv",
     "[2]"},
    /* any would do, or one that the job does not have: only by what they are in */
    {{RECEIVES(NOBODY), RECEIVES(9), RECEIVES(NOBODY), COMPUTES(1)},
     "absent",
     "ranks 0-2 wait in MPI_Recv; rank 3 has not arrived: it is running",
     "[3]"},
};

LOOP_TEST(verdicts_on_ranks_of_mpi, (sizeof cases / sizeof *cases))
{
    json_auto_t *ranks = json_array();
    for (int r = 0; r < RANKS; r++)
        json_array_append_new(ranks, trace_of(r, &cases[_i].is[r]));
    json_auto_t *v = verdict(ranks);
    char *culprits = json_dumps(json_object_get(v, "ranks"), JSON_COMPACT);
    ck_assert_str_eq(
        json_string_value(json_array_get(json_object_get(v, "sentences"), 0)),
        cases[_i].sentence);
    ck_assert_str_eq(json_string_value(json_object_get(v, "kind")), cases[_i].kind);
    ck_assert_str_eq(culprits, cases[_i].culprits);
    free(culprits);
}

/* --- requests ----------------------------------------------------------------------- */

/* What rank 0, or rank 1 has counted, of one other rank with one tag. */
struct counted {
    int peer, tag, sent, received, part;
};

static void count(struct mpi_calls_file *f, const struct counted *is)
{
    struct mpi_messages_record *m = f->messages;
    while (m->comm != 0)
        m++;
    *m = (struct mpi_messages_record){.comm = is->part ? PART : WORLD,
                                      .peer = is->peer,
                                      .tag = is->tag,
                                      .sent = (uint32_t)is->sent,
                                      .received = (uint32_t)is->received};
}

static struct mpi_message_record last_of(const struct counted *is, bool sends)
{
    return (struct mpi_message_record){.comm = is->part ? PART : WORLD,
                                       .peer = is->peer,
                                       .tag = is->tag,
                                       .number =
                                           (uint32_t)(sends ? is->sent : is->received),
                                       .sends = sends};
}

/* It waits for the last message of each, too. */
static void await(struct mpi_calls_file *f, const struct counted *is, bool sends)
{
    struct mpi_wait_record *w = &f->wait[0];
    int64_t handle = 100 + w->nrequests;
    count(f, is);
    f->request[mpi_calls_hash((uint64_t)handle)] =
        (struct mpi_request_record){.handle = handle, .is = last_of(is, sends)};
    w->request[w->nrequests++] = handle;
}

static const struct {
    struct counted awaits[2], counts, other[2]; /* rank 0's; rank 1's */
    bool sends, persistent, full, both;         /* both: rank 1 waits in the same way */
    bool exits, alone;                          /* rank 1; it has not the communicator */
    bool more;                                  /* requests of which nothing is known */
    bool sendrecv; /* it is in that call: the first is received, the second sent */
    const char *sentence;
} requests[] = {
    {{{2, 7, 0, 2}, {1, 7, 0, 2}},
     {2, 9, 4, 0},
     {{0, 7, 1, 5}, {0, 8, 1, 0}},
     .sentence =
         "rank 0 has waited 30 s in MPI_Waitall for rank 1 (tag 7; it has sent one "
         "with tag 8); rank 1 is running"},
    {{{1, 7, 0, 2}, {1, 9, 0, 1}},
     {1, 8, 0, 1},
     {{0, 7, 1, 5}, {0, 8, 1, 0}},
     .sentence = "rank 0 has waited 30 s in MPI_Waitall for rank 1 (tag 7); rank 1 is "
                 "running"},
    {{{1, 7, 0, 2}, {1, 9, 0, 1}},
     {1, 8, 0, 1},
     {{0, 7, 3, 0}, {0, 9, 0, 9}},
     .sentence =
         "rank 0 has waited 30 s in MPI_Waitall for rank 1 (tag 9; it has sent one "
         "with tag 7); rank 1 is running"},
    {{{1, 7, 0, 2}, {1, 9, 0, 1}},
     {1, 8, 0, 1},
     {{0, 7, 2, 0, .part = true}, {0, 9, 1, 0}},
     .sentence = "rank 0 has waited 30 s in MPI_Waitall for rank 1 (tag 7); rank 1 is "
                 "running"},
    {{{1, 7, 2, 9}, {1, 9, 1, 0}},
     {1, 8, 0, 1},
     {{0, 7, 0, 1}, {0, 9, 0, 1}},
     .sends = true,
     .sentence =
         "rank 0 has waited 30 s in MPI_Waitall for rank 1 to receive (tag 7); rank 1 "
         "is running"},
    {{{1, 7, 0, 1}, {1, 9, 0, 1}},
     {1, 8, 0, 1},
     {{0, 5, 1, 0}},
     .both = true,
     .sentence =
         "ranks 0-1 wait for each other: rank 0 has waited 30 s in MPI_Waitall for "
         "rank 1 (tag 7; it has sent one with tag 5); rank 1 has waited 30 s in "
         "MPI_Waitall for rank 0 (tag 7)"},
    {{{0}, {1, 9, 0, 1}},
     {2, 9, 4, 0},
     {{0, 7, 2, 0}, {0, 9, 1, 0}},
     .exits = true,
     .sentence =
         "rank 0 has waited 30 s in MPI_Waitall for rank 1 (tag 9); rank 1 has exited "
         "with status 0"},
    {{{1, 7, 2, 0}, {1, 9, 1, 0}},
     {1, 8, 0, 1},
     {{0, 7, 2, 0}, {0, 9, 1, 0}},
     .exits = true,
     .sends = true,
     .sentence = "rank 0 waits in MPI_Waitall; rank 1 has exited with status 0"},
    {{{1, 7, 0, 1}, {1, 9, 1, 0}},
     {1, 8, 0, 1},
     {{0, 5, 1, 0}, {0, 7, 1, 0}},
     .sendrecv = true,
     .sentence =
         "rank 0 has waited 30 s in MPI_Sendrecv for rank 1 to receive (tag 9); rank 1 "
         "is running"},
    {{{1, 7, 0, 1}, {1, 9, 1, 0}},
     {1, 8, 0, 1},
     {{0, 5, 1, 0}},
     .sendrecv = true,
     .sentence =
         "rank 0 has waited 30 s in MPI_Sendrecv for rank 1 (tag 7; it has sent one "
         "with tag 5); rank 1 is running"},
    /* nothing is known if all have been sent, some are not counted, or any may have come
     */
    {{{1, 7, 0, 2}, {1, 9, 0, 1}}, {1, 8, 0, 1}, {{0, 7, 2, 0}, {0, 9, 1, 0}}},
    {{{1, 7, 0, 2}, {1, 9, 0, 1}}, {1, 8, 0, 1}, {{0, 5, 1, 0}}, .persistent = true},
    {{{1, 7, 0, 2}, {1, 9, 0, 1}}, {1, 8, 0, 1}, {{0, 5, 1, 0}}, .full = true},
    {{{1, 7, 0, 2}, {1, 9, 0, 1}}, {MPI_ANY, MPI_ANY, 0, 1}, {{0, 5, 1, 0}}},
    {{{1, 7, 2, 0}, {1, 9, 1, 0}},
     {1, 8, 0, 1},
     {{MPI_ANY, MPI_ANY, 0, 1}},
     .sends = true},
    {{{1, 7, 0, 2}, {1, 9, 0, 1}}, {1, 8, 0, 1}, {{0, 5, 1, 0}}, .alone = true},
    /* a request that has ended, of which the handle is another's by now */
    {{{0}, {1, 7, 0, 2}}, {1, 8, 0, 1}, {{0, 7, 2, 0}}},
    {{{0}, {1, 7, 0, -1}}, {1, 8, 0, 1}, {{0, 7, 1, 0}}}, /* counts have passed 2^32 */
    {{{0}, {1, 7, 0, 2}}, {1, 8, 0, 1}, {{0, 5, 1, 0}}, .persistent = true, .more = true},
    /* sends may have ended */
    {{{0}, {1, 7, 2, 0}}, {1, 8, 0, 1}, {{0, 5, 1, 0}}, .sends = true, .more = true},
    {{{1, 9, 1, 0}, {1, 7, 2, 0}}, {1, 8, 0, 1}, {{0, 5, 1, 0}}, .sends = true},
};

LOOP_TEST(requests_that_others_have_not_met, (sizeof requests / sizeof *requests))
{
    static struct mpi_calls_file f[2];
    json_auto_t *ranks = json_array();
    for (int r = 0; r < 2; r++) {
        static const struct is computes = COMPUTES(1), waiting = RECEIVES(NOBODY);
        record(&f[r], &computes);
        struct mpi_comm_record comm = f[r].comm[3];
        if (r == 0 || requests[_i].both)
            record(&f[r], &waiting);
        f[r].comm[3] = comm;
        f[r].wait[0].call = row_of("MPI_Waitall");
    }
    for (size_t i = 0; i < 2; i++) {
        const struct counted *is = &requests[_i].awaits[i];
        if (requests[_i].sendrecv) {
            count(&f[0], is);
            f[0].wait[0].is[i] = last_of(is, i == 1);
        } else if (is->tag) {
            await(&f[0], is, requests[_i].sends);
        }
        if (requests[_i].other[i].tag)
            count(&f[1], &requests[_i].other[i]);
    }
    f[0].wait[0].more = requests[_i].more;
    if (requests[_i].sendrecv)
        f[0].wait[0].call = row_of("MPI_Sendrecv");
    count(&f[0], &requests[_i].counts);
    for (int tag = 7; requests[_i].both && tag < 9; tag++)
        await(&f[1], &(struct counted){0, tag, 0, 1}, false);
    f[1].uncounted = requests[_i].persistent;
    f[1].full = requests[_i].full;
    if (requests[_i].alone)
        f[1].comm[3].id = PART;
    for (int r = 0; r < 2; r++) {
        json_t *rank = json_pack("{s:i, s:s}", "rank", r, "state", "running");
        if (r == 1 && requests[_i].exits)
            json_object_set_new(rank, "exited", json_string("exited with status 0"));
        else
            trace_of_mpi(&f[r], NOW_MS, rank);
        json_array_append_new(ranks, rank);
    }
    json_auto_t *v = verdict(ranks);
    const char *sentence = requests[_i].sentence;
    ck_assert_str_eq(
        json_string_value(json_array_get(json_object_get(v, "sentences"), 0)),
        sentence ? sentence
                 : "rank 0 waits in MPI_Waitall; rank 1 has not arrived: it is running");
}

/* Rank 0 waits for messages that neither rank 1 nor rank 2 has sent; rank 1 is `other`.
 */
static void expect_awaited(const struct is *other, bool one, const char *part)
{
    static struct mpi_calls_file f[3];
    const struct is is[] = {RECEIVES(NOBODY), *other, COMPUTES(1)};
    json_auto_t *ranks = json_array();
    for (int r = 0; r < 3; r++) {
        json_t *rank = json_pack("{s:i, s:s}", "rank", r, "state",
                                 is[r].stopped ? "stopped" : "running");
        record(&f[r], &(struct is)COMPUTES(1));
        struct mpi_comm_record comm = f[r].comm[3];
        record(&f[r], &is[r]);
        f[r].comm[3] = comm;
        if (r == 0) {
            f[r].wait[0].call = row_of("MPI_Waitall");
            await(&f[r], &(struct counted){1, 7, 0, 1}, false);
            if (!one)
                await(&f[r], &(struct counted){2, 7, 0, 1}, false);
        }
        f[1].uncounted = one;
        trace_of_mpi(&f[r], NOW_MS, rank);
        json_array_append_new(ranks, rank);
    }
    json_auto_t *v = verdict(ranks);
    const char *sentence =
        json_string_value(json_array_get(json_object_get(v, "sentences"), 0));
    ck_assert_msg(strstr(sentence, part), "%s", sentence);
}

TEST(which_of_several_requests)
{
    const struct is receives = RECEIVES(2), stopped = HALTED(2), computes = COMPUTES(1);
    expect_awaited(&receives, false, "MPI_Waitall for rank 2 (tag 7)");
    expect_awaited(&stopped, false, "MPI_Waitall for rank 1 (tag 7)");
    expect_awaited(&computes, false, "MPI_Waitall for rank 1 (tag 7)");
    expect_awaited(&computes, true, "MPI_Waitall for rank 1 (tag 7)");
}

static json_int_t idle_of(const struct is *is, const char *key)
{
    json_t *ranks = json_array();
    for (int r = 0; r < RANKS; r++)
        json_array_append_new(ranks, trace_of(r, &is[r]));
    json_auto_t *idle = collect_idle(ranks);
    return json_integer_value(json_object_get(idle, key));
}

/* One that waits for a message does not make a hang while another computes. */
TEST(who_is_blocked)
{
    const struct is some[RANKS] = {RECEIVES(1), COMPUTES(1), RECEIVES(1),
                                   RECEIVES(NOBODY)},
                    all[RANKS] = {RECEIVES(1), IN("MPI_Barrier", 1), RECEIVES(1),
                                  RECEIVES(NOBODY)};
    ck_assert_int_eq(idle_of(some, "waiting"), 0);
    ck_assert_int_eq(idle_of(some, "blocked"), 3);
    ck_assert_int_eq(idle_of(all, "waiting"), 1);
    ck_assert_int_eq(idle_of(all, "blocked"), 4);
    ck_assert_int_eq(idle_of(all, "known"), 4);
    ck_assert_int_eq(idle_of(all, "idle_ms"), NOW_MS - ENTERED_MS);
    const struct is halted[RANKS] = {RECEIVES(1), STOPPED(1), HALTED(0), COMPUTES(1)};
    ck_assert_int_eq(idle_of(halted, "blocked"), 2);
    ck_assert_int_eq(idle_of(halted, "stopped"), 1);
}

/* A thread that only waits does not make its rank wait, but what it does is progress. */
TEST(threads_and_what_has_returned)
{
    static const struct is computes = COMPUTES(1);
    static struct mpi_calls_file f;
    record(&f, &computes);
    f.wait[2] = (struct mpi_wait_record){
        .at_ms = ENTERED_MS + 9000, .in = 1, .call = row_of("MPI_Recv")};
    json_t *ranks = json_pack("[{s:i}]", "rank", 0), *rank = json_array_get(ranks, 0);
    trace_of_mpi(&f, NOW_MS, rank);
    ck_assert_ptr_null(json_object_get(rank, "message"));
    json_auto_t *idle = collect_idle(ranks);
    ck_assert_int_eq(json_integer_value(json_object_get(idle, "blocked")), 0);
    ck_assert_int_eq(json_integer_value(json_object_get(idle, "idle_ms")), 21500);
    f.wait[0] = f.wait[2];
    f.wait[0].in = 0;
    f.wait[0].at_ms = ENTERED_MS + 10000;
    ranks = json_pack("[{s:i}]", "rank", 0);
    trace_of_mpi(&f, NOW_MS, json_array_get(ranks, 0));
    json_auto_t *later = collect_idle(ranks);
    ck_assert_int_eq(json_integer_value(json_object_get(later, "blocked")), 0);
    ck_assert_int_eq(json_integer_value(json_object_get(later, "idle_ms")), 20500);
}

/* Such a rank is not blamed; one that records, but has called nothing, is. */
LOOP_TEST(who_does_not_record, 3)
{
    static const char *const said[] = {"; of rank 0 there is no stack",
                                       "; of rank 0 there is no stack",
                                       "; rank 0 has not arrived: it is running"};
    static const struct is waits = IN("MPI_Barrier", 3);
    json_auto_t *ranks = json_array();
    for (int r = 0; r < RANKS; r++)
        json_array_append_new(
            ranks, r > 0 ? trace_of(r, &waits)
                         : json_pack("{s:i, s:s}", "rank", 0, "state", "running"));
    static struct mpi_calls_file f = {.version = MPI_CALLS_VERSION,
                                      .comms = MPI_CALLS_COMMS,
                                      .threads = MPI_CALLS_THREADS};
    f.partly = _i == 1;
    if (_i > 0)
        trace_of_mpi(&f, NOW_MS, json_array_get(ranks, 0));
    json_auto_t *v = verdict(ranks);
    const char *sentence =
        json_string_value(json_array_get(json_object_get(v, "sentences"), 0));
    ck_assert_msg(strstr(sentence, said[_i]), "%s", sentence);
}

/* A rank may write anything to its file, or be of another version. */
TEST(any_bytes)
{
    static struct mpi_calls_file f;
    srand(1);
    for (int turn = 0; turn < 50; turn++) {
        json_auto_t *rank = json_pack("{s:i}", "rank", 0), *ranks = json_array();
        for (size_t i = 0; i < sizeof f; i++)
            ((unsigned char *)&f)[i] = (unsigned char)(rand() >> 7);
        trace_of_mpi(&f, NOW_MS, rank);
        ck_assert_ptr_null(json_object_get(rank, "groups"));
        f.version = MPI_CALLS_VERSION;
        f.comms = MPI_CALLS_COMMS;
        f.threads = MPI_CALLS_THREADS;
        strcpy(f.comm[0].members, "0-1073741823");
        trace_of_mpi(&f, NOW_MS, rank);
        ck_assert_uint_eq(json_array_size(json_object_get(rank, "groups")),
                          MPI_CALLS_COMMS);
        json_array_append(ranks, rank);
        json_auto_t *v = verdict(ranks);
        ck_assert_ptr_nonnull(v);
    }
}
