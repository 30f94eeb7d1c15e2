#include "tests/support/suite.h"

#include "common/duration.h"
#include "common/mem.h"
#include "launcher/policy/cause.h"
#include "launcher/policy/grace.h"
#include "launcher/policy/restart.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

static struct cause exit_at(int64_t at_ns, int status)
{
    return (struct cause){.kind = CAUSE_EXIT, .at_ns = at_ns, .status = status};
}

TEST(the_earlier_cause_wins_and_a_signal_on_a_tie)
{
    struct cause none = {0}, a = exit_at(5, 3 << 8), b = exit_at(6, SIGSEGV),
                 c = exit_at(5, SIGSEGV);
    ck_assert(cause_before(&b, &none));
    ck_assert(cause_before(&a, &b));
    ck_assert(!cause_before(&b, &a));
    ck_assert(cause_before(&c, &a));
    ck_assert(!cause_before(&a, &c));
    ck_assert(!cause_before(&a, &a));
}

TEST(a_lost_node_precedes_the_exits_that_it_causes)
{
    const int64_t ms = 1000000;
    struct cause lost = {.kind = CAUSE_NODE, .at_ns = 1000 * ms},
                 soon = exit_at(990 * ms, 3 << 8),
                 long_before = exit_at(400 * ms, 3 << 8),
                 crash = exit_at(990 * ms, SIGSEGV);
    ck_assert(cause_before(&lost, &soon));
    ck_assert(!cause_before(&soon, &lost));
    ck_assert(cause_before(&long_before, &lost));
    ck_assert(cause_before(&crash, &lost));
}

static const struct {
    int status;
    uint64_t peak_kib;
    int code;
    const char *text;
} deaths[] = {
    {3 << 8, 0, 3, "exited with status 3"},
    {255 << 8, 0, 255, "exited with status 255"},
    {SIGSEGV, 0, 139, "died of SIGSEGV (segmentation fault)"},
    {SIGABRT | 0x80, 0, 134, "died of SIGABRT (aborted), core dumped"},
    {SIGKILL, 3 << 19, 137,
     "died of SIGKILL (killed), not sent by ddprun: out of memory? its peak was 1.5 GiB"},
    {SIGKILL, 1000, 137, "died of SIGKILL (killed), not sent by ddprun"},
    {SIGXCPU, 0, 152, "died of SIGXCPU (CPU time limit exceeded)"},
    {40, 0, 168, "died of signal 40"},
};

static const struct {
    int status;
    uint64_t kills, peak_kib;
    const char *text;
} starved[] = {
    {SIGKILL, 1, 3 << 19,
     "died of SIGKILL (killed), perhaps as memory ran out there: the kernel killed 1 "
     "process; the rank's peak was 1.5 GiB"},
    {SIGKILL, 2, 1000,
     "died of SIGKILL (killed), perhaps as memory ran out there: the kernel killed 2 "
     "processes"},
    {137 << 8, 2, 3 << 19,
     "exited with status 137, perhaps as memory ran out there: the kernel killed 2 "
     "processes"},
    {SIGBUS, 1, 3 << 19,
     "died of SIGBUS (bus error), perhaps as memory ran out there: the kernel killed 1 "
     "process"},
};

LOOP_TEST(what_the_kernel_killed_for_lack_of_memory, ARRAY_LEN(starved))
{
    struct cause c = {.status = starved[_i].status,
                      .peak_kib = starved[_i].peak_kib,
                      .oom_kills = starved[_i].kills};
    char *text = cause_of_death(&c);
    ck_assert_str_eq(text, starved[_i].text);
    free(text);
}

LOOP_TEST(each_cause_has_a_text_and_a_code, ARRAY_LEN(deaths))
{
    struct cause c = {.status = deaths[_i].status, .peak_kib = deaths[_i].peak_kib};
    char *text = cause_of_death(&c);
    ck_assert_str_eq(text, deaths[_i].text);
    ck_assert_int_eq(cause_exit_code(c.status), deaths[_i].code);
    free(text);
}

static bool in_text(int rank, void *arg)
{
    return ((const char *)arg)[rank] == 'x';
}

static const struct {
    const char *in, *text;
} sets[] = {
    {"....", NULL},          {"..x.", "rank 2"},       {"xxxx", "ranks 0-3"},
    {"xx.x", "ranks 0-1,3"}, {"x.x.x", "ranks 0,2,4"},
};

LOOP_TEST(ranks_are_listed_as_ranges, ARRAY_LEN(sets))
{
    char *text =
        cause_rank_set((int)strlen(sets[_i].in), in_text, (void *)(uintptr_t)sets[_i].in);
    if (sets[_i].text)
        ck_assert_str_eq(text, sets[_i].text);
    else
        ck_assert_ptr_null(text);
    free(text);
}

/* --- grace -------------------------------------------------------------------------- */

struct seen {
    struct loop *loop;
    int sigs[128], n, stop_at;
    bool freezes; /* at the first SIGKILL, for longer than UNKILLABLE_MS */
};

static void on_act(int sig, void *arg)
{
    struct seen *s = arg;
    s->sigs[s->n++] = sig;
    if (s->n == s->stop_at)
        loop_stop(s->loop, 0);
    if (s->freezes && sig == SIGKILL) {
        s->freezes = false;
        nanosleep(&(struct timespec){UNKILLABLE_MS / 1000, 500000000}, NULL);
    }
}

static void on_unkillable(void *arg)
{
    struct seen *s = arg;
    loop_stop(s->loop, 7);
}

static const struct {
    int sig;
    int64_t grace_ms;
    int sigs[3];
} steps[] = {
    {SIGTERM, 5, {SIGTERM, SIGKILL, SIGKILL}},
    {SIGINT, 5, {SIGINT, SIGTERM, SIGKILL}},
    {SIGHUP, 5, {SIGTERM, SIGKILL, SIGKILL}},
    {SIGTERM, 0, {SIGKILL, SIGKILL, SIGKILL}},
};

LOOP_TEST(a_signal_without_effect_is_escalated, ARRAY_LEN(steps))
{
    struct ddp_err err;
    struct seen s = {.loop = loop_create(&err), .stop_at = 3};
    struct grace *g = grace_create(s.loop, on_act, on_unkillable, &s);
    grace_begin(g, steps[_i].sig, steps[_i].grace_ms);
    loop_run(s.loop);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(s.sigs[i], steps[_i].sigs[i]);
    grace_destroy(g);
    loop_destroy(s.loop);
}

/* A machine that was frozen has given them no time to end. */
LOOP_TEST(unkillable_processes_are_abandoned, 2)
{
    struct ddp_err err;
    struct seen s = {.loop = loop_create(&err), .stop_at = 99, .freezes = _i == 1};
    struct grace *g = grace_create(s.loop, on_act, on_unkillable, &s);
    int64_t began = now_ms();
    grace_begin(g, SIGTERM, 5);
    ck_assert_int_eq(loop_run(s.loop), 7);
    ck_assert_int_ge(now_ms() - began, UNKILLABLE_MS);
    ck_assert_int_gt(s.n, 10);
    grace_destroy(g);
    loop_destroy(s.loop);
}

TEST(escalation_never_goes_back)
{
    struct ddp_err err;
    struct seen s = {.loop = loop_create(&err), .stop_at = 99};
    struct grace *g = grace_create(s.loop, on_act, on_unkillable, &s);
    grace_begin(g, SIGTERM, 60000);
    grace_begin(g, SIGTERM, 60000);
    grace_begin(g, SIGINT, 60000);
    ck_assert_int_eq(s.n, 1);
    grace_begin(g, SIGKILL, 0);
    ck_assert_int_eq(s.n, 2);
    ck_assert_int_eq(s.sigs[1], SIGKILL);
    grace_stop(g);
    grace_begin(g, SIGTERM, 60000);
    ck_assert_int_eq(s.sigs[2], SIGTERM);
    grace_destroy(g);
    loop_destroy(s.loop);
}

static bool delays(void *arg)
{
    struct seen *s = arg;
    s->sigs[s->n++] = 0;
    return s->stop_at == 3;
}

LOOP_TEST(sigkill_may_be_delayed_once, 2)
{
    struct ddp_err err;
    struct seen s = {.loop = loop_create(&err), .stop_at = 3 + _i};
    struct grace *g = grace_create(s.loop, on_act, on_unkillable, &s);
    grace_before_kill(g, delays);
    int64_t began = now_ms();
    grace_begin(g, SIGTERM, 5);
    loop_run(s.loop);
    ck_assert_int_eq(s.sigs[0], SIGTERM);
    ck_assert_int_eq(s.sigs[1], 0);
    ck_assert_int_eq(s.sigs[2], SIGKILL);
    if (_i == 0)
        ck_assert_int_ge(now_ms() - began, BEFORE_KILL_MS);
    else
        ck_assert_int_eq(s.sigs[3], SIGKILL);
    grace_destroy(g);
    loop_destroy(s.loop);
}

/* --- restart ------------------------------------------------------------------------ */

static const struct {
    int max, attempt;
    enum cause_kind kinds[3]; /* the failures, in this order */
    char follows[4];          /* 'y': another attempt follows */
    const char *label;
    bool ignores; /* the exit of a rank that is reported after these */
} lives[] = {
    {0, 0, {CAUSE_EXIT}, "n", "", false},
    {0, 0, {CAUSE_SIGNAL}, "n", "", false},
    {2, 0, {CAUSE_EXIT, CAUSE_ABORT}, "yy", ", attempt 1 of 3", false},
    {2, 1, {CAUSE_ABORT}, "y", ", attempt 2 of 3", false},
    {2, 2, {CAUSE_EXIT}, "n", ", attempt 3 of 3", false},
    {2, 2, {CAUSE_SIGNAL}, "n", ", attempt 3 of 3", false},
    {2, 0, {CAUSE_CANNOT}, "n", ", attempt 1 of 3", true},
    {2, 0, {CAUSE_TIME}, "n", ", attempt 1 of 3", true},
    {2, 0, {CAUSE_HANG, CAUSE_HANG}, "yy", ", attempt 1 of 3", false},
    {2, 0, {CAUSE_EXIT, CAUSE_SIGNAL, CAUSE_EXIT}, "ynn", ", attempt 1 of 3", true},
    {2, 0, {CAUSE_EXIT, CAUSE_NODE}, "yn", ", attempt 1 of 3", true},
    {2, 0, {CAUSE_EXIT, CAUSE_EXIT, CAUSE_OUTPUT}, "yyn", ", attempt 1 of 3", true},
};

LOOP_TEST(only_rank_exits_are_restarted, ARRAY_LEN(lives))
{
    struct restart r = {.max = lives[_i].max, .attempt = lives[_i].attempt};
    for (int i = 0; lives[_i].follows[i]; i++) {
        struct cause c = {.kind = lives[_i].kinds[i]};
        bool before = r.pending, follows = lives[_i].follows[i] == 'y';
        if (i == 0)
            ck_assert_int_eq(restart_asked(&r, &c), follows);
        else
            ck_assert_int_eq(restart_cancelled(&r, &c), before && !follows);
        ck_assert_int_eq(r.pending, follows);
    }
    struct cause exit = {.kind = CAUSE_EXIT}, lost = {.kind = CAUSE_NODE};
    ck_assert_int_eq(restart_ignores(&r, &exit), lives[_i].ignores);
    ck_assert(!restart_ignores(&r, &lost));
    char *label = restart_label(&r);
    ck_assert_str_eq(label, lives[_i].label);
    free(label);
    restart_next(&r);
    ck_assert(!r.pending);
    ck_assert_int_eq(r.attempt, lives[_i].attempt + 1);
}
