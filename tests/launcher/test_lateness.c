/* Stragglers are ranks that are late again and again, and no others. */
#include "tests/support/suite.h"

#include "launcher/plugins/diagnose/arrivals.h"
#include "launcher/plugins/diagnose/lateness.h"

#include <stdlib.h>
#include <string.h>

enum { RANKS = 4, STEP_US = 100000 };

/* Steps of one collective or several; rank r comes late_us(r, step) late to the first. */
struct trial {
    long (*late_us)(int rank, int step);
    unsigned buckets; /* more collectives, 1 ms apart, that no rank waits for; 0: none */
    int ranks;        /* 0: RANKS */
    int first;        /* the step of the first report; 0: none */
    unsigned found;   /* a bit for each rank that was reported */
};

static unsigned seed = 1;
static long noise_us(long most)
{
    seed = seed * 1103515245 + 12345;
    return (long)(seed >> 8) % (most + 1);
}

static void run(struct trial *t, int steps)
{
    int n = t->ranks ? t->ranks : RANKS;
    struct lateness *l = lateness_create(n, 0.1);
    uint64_t number = 0;
    int64_t now_us = 1000000;
    for (int step = 1; step <= steps; step++) {
        long most = 0;
        for (int r = 0; r < n; r++) {
            long late = t->late_us(r, step);
            most = late > most ? late : most;
            for (unsigned b = 0; b <= t->buckets; b++)
                lateness_add(l, r, 7, number + 1 + b,
                             (now_us + STEP_US + late + b * 1000) * 1000);
        }
        number += 1 + t->buckets;
        now_us += STEP_US + most + t->buckets * 1000;
        struct straggler *found;
        size_t nfound;
        lateness_examine(l, &found, &nfound);
        for (size_t i = 0; i < nfound; i++)
            t->found |= 1u << found[i].rank;
        t->first = nfound > 0 && t->first == 0 ? step : t->first;
        if (nfound > 0) {
            ck_assert_double_ge(found[0].share, 0.1);
            ck_assert_uint_le(found[0].late, found[0].rounds);
        }
        free(found);
    }
    lateness_destroy(l);
}

static long second_late(int rank, int step)
{
    return noise_us(4000) + (rank == 2 ? 20000 : 0);
}

TEST(a_straggler_is_found_within_20_steps)
{
    struct trial one = {second_late}, buckets = {second_late, .buckets = 5};
    run(&one, 20);
    ck_assert_uint_eq(one.found, 1u << 2);
    run(&buckets, 20);
    ck_assert_uint_eq(buckets.found, 1u << 2);
}

TEST(one_of_three_is_found)
{
    struct trial t = {.late_us = second_late, .ranks = 3};
    run(&t, 20);
    ck_assert_uint_eq(t.found, 1u << 2);
}

static long last_of_two_late(int rank, int step)
{
    return noise_us(4000) + (rank == 1 ? 20000 : 0);
}

TEST(one_of_two_is_found)
{
    struct trial one = {last_of_two_late, .ranks = 2},
                 buckets = {last_of_two_late, .ranks = 2, .buckets = 5};
    run(&one, 20);
    ck_assert_uint_eq(one.found, 1u << 1);
    run(&buckets, 20);
    ck_assert_uint_eq(buckets.found, 1u << 1);
}

static long host_late(int rank, int step)
{
    return noise_us(4000) + (rank >= 6 ? 30000 : 0);
}

TEST(all_late_ranks_of_a_host_are_found)
{
    struct trial t = {host_late, .ranks = 8};
    run(&t, 20);
    ck_assert_uint_eq(t.found, 3u << 6);
}

static long once(int rank, int step)
{
    return noise_us(4000) + (rank == 2 && step % 40 == 5 ? 3000000 : 0);
}
static long all_late(int rank, int step)
{
    return 60000 + noise_us(4000);
}
static long in_turn(int rank, int step)
{
    return noise_us(4000) + (rank == step % RANKS ? 40000 : 0);
}
static long by_chance(int rank, int step)
{
    return noise_us(100) < 20 ? noise_us(300000) : noise_us(60000);
}
static long a_little(int rank, int step)
{
    return noise_us(500) + (rank == 1 ? 5000 : 0);
}

TEST(others_are_not_found)
{
    long (*const healthy[])(int rank, int step) = {once, all_late, in_turn, by_chance,
                                                   a_little};
    for (size_t i = 0; i < sizeof healthy / sizeof *healthy; i++) {
        struct trial t = {healthy[i]}, two = {healthy[i], .ranks = 2};
        run(&t, healthy[i] == once ? 200 : 3000);
        ck_assert_msg(t.found == 0, "trial %zu: 0x%x at %d", i, t.found, t.first);
        run(&two, healthy[i] == once ? 200 : 3000);
        ck_assert_msg(two.found == 0, "trial %zu of 2: 0x%x at %d", i, two.found,
                      two.first);
    }
}

TEST(a_rank_that_begins_to_be_late_is_found_soon)
{
    struct lateness *l = lateness_create(RANKS, 0.1);
    struct straggler *found;
    size_t nfound = 0;
    int step = 0;
    for (; step < 1000 && nfound == 0; step++) {
        for (int r = 0; r < RANKS; r++)
            lateness_add(l, r, 1, (uint64_t)step + 1,
                         (int64_t)step * 130000000 +
                             (step >= 500 && r == 1 ? 25000000 : noise_us(2000) * 1000));
        lateness_examine(l, &found, &nfound);
        if (nfound > 0)
            ck_assert_int_eq(found->rank, 1);
        free(found);
    }
    ck_assert_int_gt(step, 500);
    ck_assert_int_le(step, 520);
    ck_assert_uint_eq(lateness_entered(l, 0), (uint64_t)step);
    ck_assert_int_gt(lateness_lag_ns(l, 1), 10000000);
    ck_assert_int_lt(lateness_lag_ns(l, 0), 3000000);
    lateness_destroy(l);
}

TEST(clocks_of_hosts_are_known_up_to_an_error)
{
    for (int error_ms = 5; error_ms <= 50; error_ms += 45) {
        struct lateness *l = lateness_create(RANKS, 0.1);
        struct straggler *found;
        size_t nfound;
        for (int r = 0; r < RANKS; r++)
            lateness_clock(l, r, r / 2, error_ms * 500000);
        for (uint64_t k = 1; k < 40; k++) {
            for (int r = 0; r < RANKS; r++) /* node 1 seems to be late */
                lateness_add(l, r, 1, k, (int64_t)k * 130000000 + r / 2 * 30000000);
        }
        lateness_examine(l, &found, &nfound);
        ck_assert_uint_eq(nfound, error_ms == 5 ? 2 : 0);
        free(found);
        lateness_forget(l);
        for (int r = 0; r < RANKS; r++)
            lateness_add(l, r, 1, 41, 1);
        ck_assert_uint_eq(lateness_examine(l, &found, &nfound), 1);
        ck_assert_uint_eq(nfound, 0);
        lateness_destroy(l);
    }
}

TEST(a_busy_host_explains_what_it_may)
{
    static const struct {
        double share;
        int64_t period_ns;
        struct cpu_share cpus;
        bool contended;
    } cases[] = {
        {0.3, 100000000, {false, 10, 0.2}, false}, /* a quiet host */
        {0.3, 100000000, {false, 25, 0.2}, true},
        {0.3, 100000000, {true, 25, 2}, true},
        {0.3, 100000000, {true, 11, 2}, true},
        {0.3, 100000000, {true, 9, 2}, false}, /* it sleeps, or computes longer */
        {0.3, 1500000000, {true, 9, 2}, true}, /* measured for one round */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct straggler is = {.share = cases[i].share, .period_ns = cases[i].period_ns};
        ck_assert_msg(lateness_contended(&is, &cases[i].cpus) == cases[i].contended,
                      "case %zu", i);
    }
}

TEST(gaps_and_ranks_that_do_not_answer)
{
    struct lateness *l = lateness_create(RANKS, 0.1);
    struct straggler *found;
    size_t nfound;
    for (uint64_t k = 1; k < 5000; k += k % 40 == 0 ? 900 : 1) {
        for (int r = 0; r < RANKS; r++)
            lateness_add(l, r, 1, k, (int64_t)k * 1000000);
    }
    lateness_add(l, 9, 1, 3, 1); /* no such rank, no such number */
    lateness_add(l, 0, 1, 0, 1);
    ck_assert_uint_gt(lateness_examine(l, &found, &nfound), 0);
    ck_assert_uint_eq(nfound, 0);
    ck_assert_uint_eq(lateness_examine(l, &found, &nfound), 0);
    lateness_destroy(l);
}

static void count(const struct arrivals_record *r, void *arg)
{
    struct arrivals_record *last = arg;
    ck_assert(last->number == 0 || last->group == r->group);
    *last = *r;
}

TEST(arrivals_in_an_answer_of_torch)
{
#define ENTRY(number, p2p, at)                                                       \
    "{\"collective_seq_id\":" number ",\"input_dtypes\":[\"Float\"],\"is_p2p\":" p2p \
    ",\"op_id\":" number ",\"pg_id\":0,\"process_group\":[\"0\",\"default_pg\"],"    \
    "\"retired\":true,\"time_created_ns\":" at ",\"timeout_ms\":1800000}"
    static const char text[] = "{\"comm_lib_version\":\"\",\"entries\":[" ENTRY(
        "1", "false",
        "1000005000") "," ENTRY("2", "false",
                                "1000009000") "," ENTRY("3", "true",
                                                        "1000010000") "],\"pg_status\":{}}";
    struct arrivals_record last = {0};
    arrivals_of_torch(text, 1000000000, count, &last);
    ck_assert_uint_eq(last.number, 2);
    ck_assert_int_eq(last.at_ns, 9000);
    arrivals_of_torch("{\"collective_seq_id\":7", 0, count, &last);
    arrivals_of_torch("", 0, count, &last);
    ck_assert_uint_eq(last.number, 2);
}

/* What ranks have written is not trusted: the numbers and times of two of them. */
TEST(absurd_numbers_and_times_are_ignored)
{
    struct straggler *found;
    size_t nfound;
    struct lateness *l = lateness_create(2, 0.1);
    for (uint64_t n = 1; n <= 3; n++) {
        lateness_add(l, 0, 1, n, n % 2 ? INT64_MIN : INT64_MAX);
        lateness_add(l, 1, 1, n, n % 2 ? INT64_MAX : INT64_MIN);
    }
    for (int r = 0; r < 2; r++)
        lateness_add(l, r, 2, UINT64_MAX, 1);
    ck_assert_uint_eq(lateness_examine(l, &found, &nfound), 0);
    ck_assert_uint_eq(nfound, 0);
    ck_assert_uint_eq(lateness_entered(l, 0), 0);
    lateness_destroy(l);
}
