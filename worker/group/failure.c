/* worker/group/failure.c - see group.h */

#include "worker/group/mailbox.h"

#include "common/duration.h"
#include "common/err.h"

enum {
    REPORT_MS = 200, /* for the report to arrive when a connection has closed */
    POLL_MS = 5      /* between checks for it on this host */
};

bool group_failure_reported(struct ddp_group *g, int *culprit, struct ddp_err *theirs)
{
    return (g->shm && shm_failed(g->shm, culprit, theirs)) ||
           (g->tcp && tcp_failure_reported(g->tcp, culprit, theirs));
}

static int break_with(struct ddp_group *g, int culprit, struct ddp_err *err, bool to_all)
{
    if (!g->broken) {
        if (g->shm) { /* one cause per host: the first that was written */
            shm_fail(g->shm, culprit, err->text);
            shm_failed(g->shm, &culprit, err);
        }
        g->broken = true;
        g->culprit = culprit;
        g->why = *err;
        /* each request reports it when it is tested or waited for */
        g->colls = (struct request_queue){0};
        mailboxes_drop(g);
        if (g->tcp) {
            tcp_report_failure(g->tcp, culprit, err->text, to_all);
            tcp_close_streams(g->tcp);
        }
    }
    *err = g->why;
    return -1;
}

int group_break(struct ddp_group *g, int culprit, struct ddp_err *err)
{
    return break_with(g, culprit, err, true);
}

int group_forward_failure(struct ddp_group *g, int culprit, struct ddp_err *err)
{
    return break_with(g, culprit, err, false);
}

int group_adopt_failure(struct ddp_group *g, struct ddp_err *err)
{
    int culprit;
    return group_failure_reported(g, &culprit, err)
               ? group_forward_failure(g, culprit, err)
               : 0;
}

int group_adopt_failure_soon(struct ddp_group *g, struct ddp_err *err)
{
    int64_t until = now_ms() + REPORT_MS;
    while (group_adopt_failure(g, err) == 0) {
        if (!g->tcp || now_ms() >= until)
            return 0;
        tcp_await_connection(g->tcp, POLL_MS);
    }
    return -1;
}

int group_adopt_family_failure(struct ddp_group *g, int culprit, struct ddp_err *err)
{
    struct ddp_err why;
    for (struct ddp_group *o = g->family; o != g; o = o->family) {
        bool broken = o->broken || group_adopt_failure(o, &why) < 0;
        if (broken && (culprit < 0 || layout_world(&o->layout, o->culprit) !=
                                          layout_world(&g->layout, culprit))) {
            *err = o->why;
            return group_break(g, -1, err);
        }
    }
    return 0;
}

struct phrase group_current_call(const struct ddp_group *g)
{
    return g->colls.first ? coll_name(&g->colls.first->coll) : p2p_name(g);
}

/* A rank seems to have gone. It may have left because of a failure elsewhere, which it
 * has reported before; or only the connection may be cut. One connection attempt does
 * not decide: the listening socket of a process that is exiting closes after its
 * streams, more than 0.4 s later where CPUs are scarce. When a connection is cut, both
 * ends see it; the higher rank waits longer, so that the lower one's report wins. */
static int await_reason(struct ddp_group *g, int culprit, enum tcp_answer *answer,
                        struct ddp_err *err)
{
    int looks = g->layout.rank > culprit ? 10 : 5;
    *answer = TCP_ANSWERS;
    for (int i = 0; i < looks && *answer != TCP_REFUSES; i++) {
        TRY(group_adopt_failure_soon(g, err));
        *answer = g->tcp ? tcp_answers(g->tcp, culprit) : TCP_REFUSES;
    }
    TRY(group_adopt_failure(g, err));
    return group_adopt_family_failure(g, culprit, err);
}

int group_rank_lost(struct ddp_group *g, int culprit, struct ddp_err *err)
{
    enum tcp_answer answer;
    struct ddp_err how = *err;
    struct phrase call = group_current_call(g);
    TRY(await_reason(g, culprit, &answer, err));
    if (answer == TCP_REFUSES) {
        err_set(err, "%.400s during %s", how.text, call.text);
        return group_break(g, culprit, err);
    }
    err_set(err,
            answer == TCP_ANSWERS
                ? "the connection between %s and %s was cut during %s"
                : "%s has lost %s during %s, and cannot ask why: too many open files "
                  "(raise 'ulimit -n')",
            layout_who(&g->layout, g->layout.rank).text,
            layout_who(&g->layout, culprit).text, call.text);
    return group_break(g, -1, err);
}
