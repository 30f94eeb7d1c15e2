/* Messages between two ranks: order, tags, sizes, many at once, deadlock-free exchange.
 */
#define CASE_SECONDS 250
#include "tests/support/suite.h"
#include "tests/worker/team.h"

#include "common/mem.h"

#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct team teams[] = {
    {.size = 2},
    {.size = 4},
    {.size = 2, .backend = "tcp"},
    {.size = 5, .backend = "tcp"},
    {.size = 4, .layout = "aabb"},
};

static void fill(unsigned char *p, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        p[i] = (unsigned char)(i * 131 + seed + (i >> 8));
}

/* Round the ring, each size once; 0 bytes, one, around what a slot, a piece, a room and
 * what is read ahead hold, long. */
static void ring_case(struct ddp_group *g, const void *arg)
{
    static const size_t sizes[] = {0,     1,     15,    40,     41,    4096,
                                   8192,  8193,  20456, 20480,  20481, 65519,
                                   65520, 65536, 65537, 3000001};
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    int next = (rank + 1) % size, prev = (rank + size - 1) % size;
    unsigned char *out = malloc(3000001), *in = malloc(3000001), *want = malloc(3000001);
    for (size_t k = 0; k < ARRAY_LEN(sizes); k++) {
        size_t n = sizes[k];
        fill(out, n, (unsigned)rank);
        fill(want, n, (unsigned)prev);
        memset(in, 0, n);
        if (rank == 0) {
            team_ok(g, ddp_send(g, out, n, next, 7, &err));
            team_ok(g, ddp_recv(g, in, n, prev, 7, &err));
        } else {
            team_ok(g, ddp_recv(g, in, n, prev, 7, &err));
            team_ok(g, ddp_send(g, out, n, next, 7, &err));
        }
        team_assert(g, memcmp(in, want, n) == 0, "%zu bytes came otherwise", n);
    }
    free(out);
    free(in);
    free(want);
}

LOOP_TEST(messages_of_all_sizes_arrive, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], ring_case, NULL);
}

/* Each rank sends to all, itself too, before any receives. */
static void exchange_case(struct ddp_group *g, const void *arg)
{
    enum { BYTES = 400000, MAX = 8 };
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    struct ddp_request *sent[MAX], *come[MAX];
    unsigned char *out = malloc(BYTES), *in[MAX], *want = malloc(BYTES);
    fill(out, BYTES, (unsigned)rank);
    for (int r = 0; r < size; r++) {
        sent[r] = ddp_isend(g, out, BYTES, r, 1, &err);
        team_assert(g, sent[r], "%s", err.text);
    }
    for (int r = size - 1; r >= 0; r--) {
        in[r] = calloc(1, BYTES);
        come[r] = ddp_irecv(g, in[r], BYTES, r, 1, &err);
        team_assert(g, come[r], "%s", err.text);
    }
    for (int r = 0; r < size; r++) {
        team_ok(g, ddp_wait(come[r], &err));
        fill(want, BYTES, (unsigned)r);
        team_assert(g, memcmp(in[r], want, BYTES) == 0, "from %d came something else", r);
        free(in[r]);
        int done = 0;
        while (!done)
            team_ok(g, ddp_test(sent[r], &done, &err));
    }
    free(out);
    free(want);
}

LOOP_TEST(all_may_send_before_any_receives, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], exchange_case, NULL);
}

/* In order for each tag, whatever the order of asking; collectives in between. */
static void tags_case(struct ddp_group *g, const void *arg)
{
    enum { MANY = 300 };
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), values[MANY], sum = rank;
    struct ddp_request *r[MANY];
    if (rank == 0) {
        for (int i = 0; i < MANY; i++) {
            values[i] = i;
            r[i] = ddp_isend(g, &values[i], sizeof(int), 1, i % 3, &err);
            team_assert(g, r[i], "%s", err.text);
        }
    }
    team_ok(g, ddp_all_reduce(g, &sum, 1, DDP_I32, DDP_SUM, &err));
    team_assert(g, sum == ddp_group_size(g) * (ddp_group_size(g) - 1) / 2, "sum %d", sum);
    for (int tag = 2; rank == 1 && tag >= 0; tag--) {
        for (int i = tag; i < MANY; i += 3) {
            int got = -1;
            team_ok(g, ddp_recv(g, &got, sizeof got, 0, tag, &err));
            team_assert(g, got == i, "tag %d: %d instead of %d", tag, got, i);
        }
    }
    for (int i = 0; rank == 0 && i < MANY; i++)
        team_ok(g, ddp_wait(r[i], &err));
    team_ok(g, ddp_barrier(g, &err));
}

LOOP_TEST(each_tag_keeps_its_order, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], tags_case, NULL);
}

/* One receives from any source; the last of them have left meanwhile. */
static void any_source_case(struct ddp_group *g, const void *arg)
{
    enum { EACH = 40, TAG = 3, OWN = 4 };
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g), last = -1, from = -1;
    if (rank != 0) {
        for (int i = 0; i < EACH; i++) {
            int x = rank * EACH + i;
            team_ok(g, ddp_send(g, &x, sizeof x, 0, i == EACH - 1 ? OWN : TAG, &err));
        }
        return;
    }
    int next[8] = {0};
    team_ok(g, ddp_recv(g, &last, sizeof last, 1, OWN,
                        &err)); /* what has another tag waits */
    team_assert(g, last == 2 * EACH - 1, "%d", last);
    for (int i = 0; i < (size - 1) * (EACH - 1); i++) {
        int x = -1;
        struct ddp_request *r =
            i % 2 ? NULL : ddp_irecv_any(g, &x, sizeof x, TAG, &from, &err);
        if (i % 2)
            team_ok(g, ddp_recv_any(g, &x, sizeof x, TAG, &from, &err));
        else
            team_ok(g, ddp_wait(r, &err));
        team_assert(g, from > 0 && from < size, "from %d", from);
        team_assert(g, x == from * EACH + next[from], "%d from %d, after %d", x, from,
                    next[from]);
        next[from]++;
    }
    team_assert(g, ddp_recv_any(g, &last, sizeof last, TAG, NULL, &err) == -1,
                "one too many");
    team_assert(g, strstr(err.text, "left"), "%s", err.text);
}

LOOP_TEST(messages_may_come_from_any_source, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], any_source_case, NULL);
}

/* Of the messages of two ranks that come before they are asked for, that of rank 2 is the
 * first. */
static void arrival_case(struct ddp_group *g, const void *arg)
{
    enum { TAG = 3, NEXT = 4 };
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), x = rank, from = -1;
    for (int r = 2; r > 0; r--) {
        if (rank == r) {
            team_ok(g, ddp_send(g, &x, sizeof x, 0, TAG, &err));
            team_ok(g, ddp_send(g, &x, sizeof x, 0, NEXT, &err));
        } else if (rank == 0) {
            team_ok(g, ddp_recv(g, &x, sizeof x, r, NEXT, &err));
        }
        team_ok(g, ddp_barrier(g, &err));
    }
    for (int r = 2; r > 0 && rank == 0; r--) {
        team_ok(g, ddp_recv_any(g, &x, sizeof x, TAG, &from, &err));
        team_assert(g, from == r && x == r, "%d from %d instead of %d", x, from, r);
    }
}

LOOP_TEST(the_first_to_arrive_is_received_first, 2)
{
    assert_team(&(struct team){.size = 3, .backend = _i ? "tcp" : NULL}, arrival_case,
                NULL);
}

/* A receive that was called off takes nothing; one that was asked first is first. */
static void cancel_case(struct ddp_group *g, const void *arg)
{
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g), off = 0;
    int next = (rank + 1) % size, prev = (rank + size - 1) % size;
    int x[3] = {-1, -1, -1}, from = -1, mine = rank;
    struct ddp_request *first = ddp_irecv(g, &x[0], sizeof(int), prev, 1, &err);
    struct ddp_request *any = ddp_irecv_any(g, &x[1], sizeof(int), 1, &from, &err);
    struct ddp_request *third = ddp_irecv(g, &x[2], sizeof(int), prev, 1, &err);
    team_ok(g, ddp_cancel(first, &off, &err));
    team_assert(g, off == 1, "a receive cannot be called off");
    team_ok(g, ddp_barrier(g, &err));
    team_ok(g, ddp_send(g, &mine, sizeof mine, next, 1, &err));
    mine += 100;
    team_ok(g, ddp_send(g, &mine, sizeof mine, next, 1, &err));
    team_ok(g, ddp_wait(third, &err));
    team_ok(g, ddp_wait(any, &err));
    team_assert(g, x[0] == -1 && x[1] == prev && from == prev && x[2] == prev + 100,
                "%d, %d from %d, %d", x[0], x[1], from, x[2]);
    struct ddp_request *coll = ddp_ibarrier(g, &err);
    team_ok(g, ddp_cancel(coll, &off, &err));
    team_assert(g, off == 0, "a collective was called off");
    team_ok(g, ddp_wait(coll, &err));
}

LOOP_TEST(a_receive_can_be_called_off, ARRAY_LEN(teams) + 1)
{
    static const struct team alone = {.size = 1}; /* and sends to itself */
    assert_team(_i ? &teams[_i - 1] : &alone, cancel_case, NULL);
}

/* How far two ranks of a test are; in memory that both share. */
static _Atomic int *stage;

static void await_stage(struct ddp_group *g, int wanted)
{
    enum { LOOKS = 20000, LOOK_US = 1000 };
    for (int i = 0; i < LOOKS && *stage < wanted; i++)
        usleep(LOOK_US);
    team_assert(g, *stage >= wanted, "stage %d has not come", wanted);
}

static void assert_in_stages(const char *backend,
                             void (*fn)(struct ddp_group *g, const void *arg))
{
    stage = team_shared(sizeof *stage);
    assert_team(&(struct team){.size = 2, .backend = backend}, fn, NULL);
}

/* Of a long message some has come while another one was awaited. Whether the first who
 * asks for it can still be called off or not: somebody gets it. */
static void coming_case(struct ddp_group *g, const void *arg)
{
    enum { BYTES = 3000001, LONG = 1, SHORT = 2, TURNS = 50 };
    struct ddp_err err = {""};
    unsigned char *data = calloc(2, BYTES), *want = malloc(BYTES);
    int rank = ddp_group_rank(g), off = 0, done = 0, x = rank;
    fill(want, BYTES, 5);
    if (rank == 0) {
        struct ddp_request *r = ddp_isend(g, want, BYTES, 1, LONG, &err);
        team_assert(g, r, "%s", err.text);
        *stage = 1;
        await_stage(g, 2);
        team_ok(g, ddp_wait(r, &err));
        team_ok(g, ddp_send(g, &x, sizeof x, 1, SHORT, &err));
    } else {
        await_stage(g, 1);
        struct ddp_request *other = ddp_irecv(g, &x, sizeof x, 0, SHORT, &err), *r[2];
        for (int i = 0; i < TURNS; i++)
            team_ok(g, ddp_test(other, &done, &err));
        for (int i = 0; i < 2; i++)
            r[i] = ddp_irecv(g, data + i * BYTES, BYTES, 0, LONG, &err);
        team_ok(g, ddp_cancel(r[0], &off, &err));
        *stage = 2;
        team_ok(g, ddp_wait(r[off], &err));
        team_assert(g, memcmp(data + off * BYTES, want, BYTES) == 0, "other bytes");
        team_ok(g, ddp_wait(other, &err));
        if (!off)
            team_ok(g, ddp_cancel(r[1], &off, &err));
        team_assert(g, off == 1 && x == 0, "off %d, x %d", off, x);
    }
    team_ok(g, ddp_barrier(g, &err));
    free(data);
    free(want);
}

LOOP_TEST(what_is_coming_in_is_not_lost, 2)
{
    assert_in_stages(_i ? "tcp" : NULL, coming_case);
}

/* A wait that is over before the message goes on where it was; its deadline counts from
 * the first part. */
static void parts_case(struct ddp_group *g, const void *arg)
{
    enum { QUESTION = 3, ANSWER = 4, NEVER = 5 };
    struct ddp_err err = {""};
    int x = 7, done = 1, rc = 0;
    if (ddp_group_rank(g) == 1) {
        team_ok(g, ddp_recv(g, &x, sizeof x, 0, QUESTION, &err));
        team_ok(g, ddp_send(g, &x, sizeof x, 0, ANSWER, &err));
        await_stage(g, 1);
        return;
    }
    struct ddp_request *r = ddp_irecv(g, &x, sizeof x, 1, ANSWER, &err);
    static const int64_t short_ms[] = {0, 4, -1, INT64_MIN}; /* a time that has passed */
    for (size_t i = 0; i < ARRAY_LEN(short_ms); i++) {
        team_ok(g, ddp_wait_for(r, short_ms[i], &done, &err));
        team_assert(g, !done, "an answer before the question");
    }
    int y = 8;
    team_ok(g, ddp_send(g, &y, sizeof y, 1, QUESTION, &err));
    team_ok(g, ddp_wait_for(r, INT64_MAX, &done, &err));
    team_assert(g, done && x == 8, "%d", x);
    r = ddp_irecv(g, &x, sizeof x, 1, NEVER, &err);
    for (int i = 0; rc == 0 && i < 1000; i++) {
        rc = ddp_wait_for(r, 10, &done, &err);
        ddp_group_set_timeout(g, 100); /* counts for a wait that has begun */
    }
    team_assert(g, rc < 0 && strstr(err.text, "within 0.1 s"), "%d %s", rc, err.text);
    *stage = 1;
}

LOOP_TEST(a_wait_may_come_in_parts, 2)
{
    assert_in_stages(_i ? "tcp" : NULL, parts_case);
}

/* Of all memory from malloc(). */
static size_t bytes_in_use(void)
{
    return (size_t)mallinfo2().uordblks;
}

/* Messages that come before they are asked for, many and short, take little memory beside
 * what they carry. */
static void early_case(struct ddp_group *g, const void *arg)
{
    enum { EARLY = 4000, SMALL = 200 };
    struct ddp_err err = {""};
    int64_t x = 0;
    size_t before = bytes_in_use();
    for (int i = 0; i < EARLY && ddp_group_rank(g) == 1; i++)
        team_ok(g, ddp_send(g, &x, sizeof x, 0, 1, &err));
    if (ddp_group_rank(g) == 1) {
        team_ok(g, ddp_send(g, &x, sizeof x, 0, 2, &err));
        return;
    }
    team_ok(g, ddp_recv(g, &x, sizeof x, 1, 2, &err));
    size_t each = (bytes_in_use() - before) / EARLY;
    team_assert(g, each < SMALL, "%zu bytes for one of %zu", each, sizeof x);
    for (int i = 0; i < EARLY; i++)
        team_ok(g, ddp_recv(g, &x, sizeof x, 1, 1, &err));
}

LOOP_TEST(early_messages_take_little_memory, 2)
{
    assert_team(&teams[2 * _i], early_case, NULL);
}

/* Groups that live for a few messages: in one of two both speak first at the same time,
 * in the other one is answered; then both leave at once. */
static void first_case(struct ddp_group *g, const void *arg)
{
    enum { GROUPS = 12 };
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), size = ddp_group_size(g);
    int next = (rank + 1) % size, prev = (rank + size - 1) % size;
    for (int i = 0; i < GROUPS; i++) {
        struct ddp_group *sub = NULL;
        struct ddp_request *r = NULL;
        int mine = rank * GROUPS + i, theirs = -1;
        team_ok(g, ddp_group_split(g, 0, rank, &sub, &err));
        if (i % 2 == 0 || rank == 0)
            team_assert(g, r = ddp_isend(sub, &mine, sizeof mine, next, i, &err), "%s",
                        err.text);
        team_ok(g, ddp_recv(sub, &theirs, sizeof theirs, prev, i, &err));
        team_assert(g, theirs == prev * GROUPS + i, "%d from %d", theirs, prev);
        if (r)
            team_ok(g, ddp_wait(r, &err));
        else
            team_ok(g, ddp_send(sub, &mine, sizeof mine, next, i, &err));
        ddp_group_destroy(sub);
    }
}

LOOP_TEST(any_rank_may_send_first, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], first_case, NULL);
}

/* More short messages than there is room for, while the receiver is away; then the
 * receiver waits until it sleeps. */
static void full_case(struct ddp_group *g, const void *arg)
{
    enum { MANY = 2000, AWAY_US = 3000 };
    struct ddp_err err = {""};
    int rank = ddp_group_rank(g), x = -1;
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < MANY && rank < 2; i++) {
            if (i == 0 && rank == (turn == 1 ? 0 : 1))
                usleep(AWAY_US);
            if (rank == 0)
                team_ok(g, ddp_send(g, &i, sizeof i, 1, 5, &err));
            else
                team_ok(g, ddp_recv(g, &x, sizeof x, 0, 5, &err));
            team_assert(g, rank == 0 || x == i, "%d instead of %d", x, i);
        }
    }
    team_ok(g, ddp_barrier(g, &err));
}

LOOP_TEST(a_stream_may_be_full, ARRAY_LEN(teams))
{
    assert_team(&teams[_i], full_case, NULL);
}

/* The message comes when it is asked for, or before. */
static void size_case(struct ddp_group *g, const void *arg)
{
    const bool *early = arg;
    struct ddp_err err = {""};
    char data[16] = "";
    if (ddp_group_rank(g) == 0) {
        team_ok(g, ddp_send(g, data, 8, 1, 0, &err));
        if (*early)
            team_ok(g, ddp_send(g, data, 8, 1, 1, &err));
        team_assert(g, ddp_barrier(g, &err) == -1, "the barrier went well");
    } else {
        if (*early)
            team_ok(g, ddp_recv(g, data, 8, 0, 1, &err));
        team_assert(g, ddp_recv(g, data, 16, 0, 0, &err) == -1, "16 bytes of 8 came");
    }
    team_assert(g, strstr(err.text, "8 bytes with tag 0 where 16 are asked for"), "%s",
                err.text);
}

LOOP_TEST(another_size_is_an_error_of_both, 4)
{
    const bool early = _i % 2;
    assert_team(&(struct team){.size = 2, .backend = _i < 2 ? "tcp" : NULL}, size_case,
                &early);
}
