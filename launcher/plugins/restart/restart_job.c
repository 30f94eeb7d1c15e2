/* launcher/plugins/restart/restart_job.c - whether there is another attempt, and when
 *
 * After a failed rank, once every node has ended its ranks: check whether the attempt
 * made progress (doc/contract.md), end the job if too many in a row did not, else wait,
 * longer each time. After a lost host, which is not the program's fault, there is no
 * check and no wait. What a program says of its steps also tells how many are done again.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/plugin.h"
#include "launcher/plugins/plugins.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/offload.h"
#include "common/text_file.h"
#include "launcher/job/events.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* The first attempt waits --restart-delay, later ones up to 2^DOUBLINGS times as long. */
enum { DOUBLINGS = 4 };

/* ms: for stat() of --progress-file, which a dead file server may never answer */
enum { LOOK_MS = 2000, POLL_MS = 10 };

/* How the lines begin in which a rank says: a state that later attempts can go on from;
 * a step that it has done; the step that this attempt goes on from. */
enum report { CHECKPOINT, STEP, RESUMED };
static const char *const reports[] = {
    [CHECKPOINT] = "ddprun.checkpoint ",
    [STEP] = "ddprun.step ",
    [RESUMED] = "ddprun.resumed ",
};

/* State that changes when a file is written or replaced, or a folder gets another entry.
 */
struct look {
    char path[PATH_MAX];
    struct stat st; /* zeros: there is none */
};

struct line {
    char text[48]; /* its beginning */
    size_t n;
};

struct decision {
    struct job *j;       /* borrowed */
    struct event *timer; /* owned; NULL: not open */
    enum { RUNS, LOOKS, WAITS, GOES } phase;
    struct offload *looking; /* owned; in LOOKS */
    int64_t deadline_ms;     /* of LOOKS */
    struct look before;      /* --progress-file at the end of the last attempt */
    struct line *lines;      /* owned: by rank; NULL: no output yet in this attempt */
    long long step;          /* the highest that a rank has reported */
    long long first;         /* what was reported first of all; -1: nothing */
    bool reported, told;     /* in this attempt; that an attempt began anew */
    bool further;            /* this attempt has reported it */
    int stuck;               /* attempts in a row that did not get further */
    long long reached;       /* the last step done since the attempt resumed; -1: none */
    bool resumed;            /* this attempt has said from where */
    long long again;         /* steps done again, in all; -1: none was told */
};

/* --- progress ----------------------------------------------------------------------- */

static void look_at(void *copy)
{
    struct look *l = copy;
    if (stat(l->path, &l->st) < 0)
        l->st = (struct stat){0};
}

/* A program that does not resume reports the same steps in each attempt. One whose last
 * checkpoint was lost reports some again, and not the first. */
static void check_first(struct decision *d, int rank, long long step)
{
    if (d->first < 0)
        d->first = step;
    if (d->reported || d->told || step > d->first || d->step <= d->first)
        return;
    d->told = true;
    job_say(
        d->j,
        "ddprun: warning: rank %d reports step %lld again ('ddprun.checkpoint'), after step "
        "%lld in an earlier attempt: the program begins anew and may write over its "
        "checkpoints; have it resume from the newest one",
        rank, step, d->step);
}

/* The first rank's line counts: all ranks resume from the same step. */
static void take_resumed(struct decision *d, int rank, long long step)
{
    if (d->resumed || d->j->restart.attempt == 0)
        return;
    long long again = d->reached > step ? d->reached - step : 0;
    d->resumed = true;
    d->reached = step;
    d->again = (d->again < 0 ? 0 : d->again) + again;
    event_emit(d->j, "resumed", "{s:i, s:I, s:I}", "rank", rank, "step", (json_int_t)step,
               "again", (json_int_t)again);
}

static void take_line(struct decision *d, int rank, const char *line)
{
    char *end;
    size_t which = 0;
    while (which < ARRAY_LEN(reports) &&
           strncmp(line, reports[which], strlen(reports[which])) != 0)
        which++;
    if (which == ARRAY_LEN(reports))
        return;
    const char *number = line + strlen(reports[which]);
    long long step = strtoll(number, &end, 10);
    if (end == number || !strchr(" \r", *end))
        return;
    if (which == RESUMED) {
        take_resumed(d, rank, step);
        return;
    }
    d->reached = step > d->reached ? step : d->reached;
    if (which == STEP)
        return;
    check_first(d, rank, step);
    d->reported = true;
    if (step <= d->step)
        return;
    d->step = step;
    d->further = true;
    event_emit(d->j, "checkpoint", "{s:i, s:I}", "rank", rank, "step", (json_int_t)step);
}

static void on_output(void *state, int rank, unsigned stream, const void *data,
                      size_t size)
{
    struct decision *d = state;
    if (stream != OUT_STDOUT)
        return;
    if (!d->lines)
        d->lines = xcalloc((size_t)d->j->plan->nranks, sizeof *d->lines);
    struct line *l = &d->lines[rank];
    for (const char *p = data, *end = p + size, *nl; p < end; p = nl + 1) {
        nl = memchr(p, '\n', (size_t)(end - p));
        size_t n = (size_t)((nl ? nl : end) - p), room = sizeof l->text - 1 - l->n;
        n = n < room ? n : room;
        memcpy(l->text + l->n, p, n);
        l->n += n;
        if (!nl)
            return;
        l->text[l->n] = '\0';
        l->n = 0;
        take_line(d, rank, l->text);
    }
}

static void on_ranks_added(void *state, int first)
{
    struct decision *d = state;
    if (d->lines)
        d->lines =
            xgrow(d->lines, (size_t)first, (size_t)d->j->plan->nranks, sizeof *d->lines);
}

/* --- the decision ------------------------------------------------------------------- */

static void wait_for_next(struct decision *d, int64_t ms)
{
    int again = d->stuck > 1 ? d->stuck - 1 : 0;
    ms <<= again < DOUBLINGS ? again : DOUBLINGS;
    job_say(d->j, "ddprun: the next attempt begins in %.4g s (--restart-delay)",
            (double)ms / 1e3);
    d->phase = WAITS;
    loop_arm(d->timer, ms);
}

static void decide(struct decision *d)
{
    const struct opts *opts = d->j->opts;
    d->stuck = d->further ? 0 : d->stuck + 1;
    d->phase = GOES;
    if (opts->max_no_progress > 0 && d->stuck >= opts->max_no_progress) {
        OWNED char *than =
            d->step < 0 ? xstrdup("") : xasprintf(" than step %lld", d->step);
        job_fail_text(d->j, CAUSE_STUCK, EXIT_NO_RESTART,
                      xasprintf("%d attempt%s in a row got no further%s "
                                "(--max-no-progress): do not requeue the job",
                                d->stuck, d->stuck == 1 ? "" : "s", than));
    } else if (opts->restart_delay_ms > 0)
        wait_for_next(d, opts->restart_delay_ms);
}

static void begin_look(struct decision *d)
{
    d->phase = LOOKS;
    d->deadline_ms = now_ms() + LOOK_MS;
    d->looking = offload_begin(look_at, &d->before, sizeof d->before, NULL);
    loop_arm(d->timer, 0);
}

/* Without an answer nothing has changed. */
static bool end_look(struct decision *d)
{
    const struct look *now = d->looking ? offload_wait(d->looking, 0) : NULL;
    if (d->looking && !now && now_ms() < d->deadline_ms)
        return false;
    if (now && !text_file_same(&now->st, &d->before.st)) {
        d->before = *now;
        d->further = true;
    }
    offload_end(d->looking);
    d->looking = NULL;
    return true;
}

static void on_timer(evutil_socket_t fd, short what, void *arg)
{
    struct decision *d = arg;
    if (!d->j->restart.pending)
        return; /* the job was ended meanwhile */
    if (d->phase == WAITS)
        d->phase = GOES;
    else if (d->phase == LOOKS && end_look(d))
        decide(d);
    else if (d->phase == LOOKS)
        loop_arm(d->timer, POLL_MS);
    job_check(d->j);
}

static bool on_may_restart(void *state)
{
    struct decision *d = state;
    if (d->phase == RUNS && d->j->restart.moving)
        d->phase = GOES;
    else if (d->phase == RUNS && d->j->opts->progress_file)
        begin_look(d);
    else if (d->phase == RUNS)
        decide(d);
    return d->phase == GOES && d->j->restart.pending;
}

static void on_next_attempt(void *state)
{
    struct decision *d = state;
    d->phase = RUNS;
    d->further = d->reported = d->resumed = false;
    free(d->lines); /* there may be another number of ranks */
    d->lines = NULL;
}

static void on_report(void *state)
{
    struct decision *d = state;
    if (d->again < 0)
        return;
    job_say(d->j, "ddprun: %lld step%s done again after failures", d->again,
            d->again == 1 ? " was" : "s were");
}

/* --- life --------------------------------------------------------------------------- */

static int on_init(void *state, struct ddp_err *err)
{
    struct decision *d = state;
    const struct opts *o = d->j->opts;
    if (!d->j->restart.max && !d->j->restart.spares)
        return 1;
    if (o->max_no_progress > o->max_restarts)
        return err_set(err, "--max-no-progress %d: --max-restarts %d ends the job before",
                       o->max_no_progress, o->max_restarts);
    d->step = d->first = d->reached = d->again = -1;
    if (o->progress_file)
        snprintf(d->before.path, sizeof d->before.path, "%s", o->progress_file);
    return 0;
}

/* The file's state before the first attempt. */
static void look_first(struct decision *d)
{
    struct offload *a = offload_begin(look_at, &d->before, sizeof d->before, NULL);
    const struct look *now = a ? offload_wait(a, LOOK_MS) : NULL;
    if (now)
        d->before = *now;
    else
        log_warn("--progress-file '%s': no answer in %d s (stalled file system?)",
                 d->before.path, LOOK_MS / 1000);
    offload_end(a);
}

static int on_open(void *state, struct ddp_err *err)
{
    struct decision *d = state;
    d->timer = loop_timer(d->j->loop, on_timer, d);
    if (d->j->opts->progress_file)
        look_first(d);
    return 0;
}

static void on_fini(void *state)
{
    struct decision *d = state;
    loop_free(d->timer);
    offload_end(d->looking);
    free(d->lines);
}

const struct job_plugin restart_job = {
    .name = "restart",
    .state_size = sizeof(struct decision),
    .init = on_init,
    .open = on_open,
    .fini = on_fini,
    .output = on_output,
    .ranks_added = on_ranks_added,
    .may_restart = on_may_restart,
    .next_attempt = on_next_attempt,
    .report = on_report,
};
