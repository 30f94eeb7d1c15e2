/* launcher/policy/grace.c - see grace.h */
#define LOG_SUBSYS "grace"
#include "launcher/policy/grace.h"

#include "common/limit.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/signame.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* ms: between two KILLs */
enum { KILL_AGAIN_MS = 100 };

/* A signal, and the ms until the next step (0: the grace time). */
static const struct step {
    int sig;
    int64_t wait_ms;
} steps[] = {
    {SIGINT, 0},
    {SIGTERM, 0}, /* after an INT: TERM_AFTER_INT_MS */
    {SIGKILL, KILL_AGAIN_MS},
};
enum { STEP_NONE = -1, STEP_INT, STEP_TERM, STEP_KILL };

struct grace {
    struct limit *step_limit; /* owned */
    void (*act)(int sig, void *arg);
    void (*unkillable)(void *arg);
    bool (*delays)(void *arg); /* grace_before_kill(); NULL: not set */
    void *arg;
    int step;
    int kills;
    int64_t grace_ms;
    bool began_with_int;
    bool delayed; /* `delays` has been called */
};

static void enter(struct grace *g, int step)
{
    g->kills = step == STEP_KILL ? g->kills + 1 : 0;
    g->step = step;
    int64_t ms = steps[step].wait_ms ? steps[step].wait_ms : g->grace_ms;
    if (step == STEP_TERM && g->began_with_int && ms > TERM_AFTER_INT_MS)
        ms = TERM_AFTER_INT_MS;
    limit_arm(g->step_limit, ms);
    log_debug("%s to all, next step in %lld ms", signal_name(steps[step].sig),
              (long long)ms);
    g->act(steps[step].sig, g->arg);
}

static void on_step_limit(void *arg)
{
    struct grace *g = arg;
    bool asks = g->step == STEP_TERM && g->delays && !g->delayed;
    g->delayed |= asks;
    if (asks && g->delays(g->arg))
        limit_arm(g->step_limit, BEFORE_KILL_MS);
    else if (g->step < STEP_KILL)
        enter(g, g->step + 1);
    else if (g->kills < UNKILLABLE_MS / KILL_AGAIN_MS)
        enter(g, STEP_KILL);
    else
        g->unkillable(g->arg);
}

int64_t grace_longest_ms(int sig, int64_t grace_ms)
{
    int64_t after_int_ms = grace_ms < TERM_AFTER_INT_MS ? grace_ms : TERM_AFTER_INT_MS;
    return grace_ms + (sig == SIGINT ? after_int_ms : 0) + BEFORE_KILL_MS + UNKILLABLE_MS;
}

void grace_begin(struct grace *g, int sig, int64_t grace_ms)
{
    int step = grace_ms <= 0 ? STEP_KILL : sig == SIGINT ? STEP_INT : STEP_TERM;
    if (step <= g->step)
        return;
    g->grace_ms = grace_ms;
    g->began_with_int |= step == STEP_INT;
    enter(g, step);
}

void grace_stop(struct grace *g)
{
    limit_stop(g->step_limit);
    g->step = STEP_NONE;
    g->kills = 0;
    g->began_with_int = false;
    g->delayed = false;
}

struct grace *grace_create(struct loop *loop, void (*act)(int sig, void *arg),
                           void (*unkillable)(void *arg), void *arg)
{
    struct grace *g = xcalloc(1, sizeof *g);
    *g = (struct grace){
        .act = act, .unkillable = unkillable, .arg = arg, .step = STEP_NONE};
    g->step_limit = limit_create(loop, on_step_limit, g);
    return g;
}

void grace_before_kill(struct grace *g, bool (*delays)(void *arg))
{
    g->delays = delays;
}

void grace_destroy(struct grace *g)
{
    if (!g)
        return;
    limit_destroy(g->step_limit);
    free(g);
}
