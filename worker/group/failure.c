/* worker/group/failure.c - see group.h */

#include "worker/group/mailbox.h"

#include "common/duration.h"
#include "common/err.h"

#include <stdio.h>

enum {
    REPORT_MS = 200, /* for the report to arrive when a connection has closed */
    POLL_MS = 5      /* between checks for it on this host */
};

bool group_failure_told(struct ddp_group *g, int *culprit, struct ddp_err *theirs)
{
    return (g->shm && shm_failed(g->shm, culprit, theirs)) ||
           (g->tcp && tcp_failure_told(g->tcp, culprit, theirs));
}

static int break_with(struct ddp_group *g, int culprit, struct ddp_err *err,
                      enum tcp_audience audience)
{
    if (!g->broken) {
        if (g->shm) { /* one cause per host: the first that was written */
            shm_fail(g->shm, culprit, err->text);
            shm_failed(g->shm, &culprit, err);
        }
        g->broken = true;
        g->why = *err;
        g->colls = (struct request_queue){
            NULL, NULL}; /* each request reports it when tested or waited for */
        mailboxes_drop(g);
        if (g->tcp) {
            tcp_tell_failure(g->tcp, culprit, err->text, audience);
            tcp_close_streams(g->tcp);
        }
    }
    *err = g->why;
    return -1;
}

int group_break(struct ddp_group *g, int culprit, struct ddp_err *err)
{
    return break_with(g, culprit, err, TCP_TO_ALL);
}

int group_forward_failure(struct ddp_group *g, int culprit, struct ddp_err *err)
{
    return break_with(g, culprit, err, TCP_TO_NEIGHBOURS);
}

const char *group_current_call(const struct ddp_group *g, char *text, size_t size)
{
    if (g->colls.first)
        return coll_name(&g->colls.first->coll, text, size);
    snprintf(text, size, "a send or receive");
    return text;
}

bool group_failure_told_soon(struct ddp_group *g, int *culprit, struct ddp_err *theirs)
{
    int64_t until = now_ms() + REPORT_MS;
    while (!group_failure_told(g, culprit, theirs)) {
        if (!g->tcp || now_ms() >= until)
            return false;
        tcp_await_connection(g->tcp, POLL_MS);
    }
    return true;
}

/* A rank seems to have gone. It may have left because of a failure elsewhere, which it
 * has reported before; or only the connection may be cut. One connection attempt does
 * not decide: the listening socket of a process that is exiting may close after its
 * streams when CPUs are scarce. When a connection is cut, both ends see it; the higher
 * rank waits longer, so that the lower one's report wins. */
static bool explained_by_report(struct ddp_group *g, int culprit, enum tcp_answer *answer,
                                int *first, struct ddp_err *theirs)
{
    int looks = g->layout.rank > culprit ? 4 : 2;
    *answer = TCP_ANSWERS;
    for (int i = 0; i < looks && *answer != TCP_REFUSES; i++) {
        if (group_failure_told_soon(g, first, theirs))
            return true;
        *answer = g->tcp ? tcp_answers(g->tcp, culprit) : TCP_REFUSES;
    }
    return group_failure_told(g, first, theirs);
}

int group_rank_lost(struct ddp_group *g, int culprit, struct ddp_err *err)
{
    int first;
    enum tcp_answer answer;
    struct ddp_err theirs, how = *err;
    char what[64], me[128], other[128];
    if (explained_by_report(g, culprit, &answer, &first, &theirs)) {
        *err = theirs;
        return group_forward_failure(g, first, err);
    }
    group_current_call(g, what, sizeof what);
    if (answer == TCP_REFUSES) {
        err_set(err, "%.400s during %s", how.text, what);
        return group_break(g, culprit, err);
    }
    layout_who(&g->layout, g->layout.rank, me, sizeof me);
    layout_who(&g->layout, culprit, other, sizeof other);
    err_set(err,
            answer == TCP_ANSWERS
                ? "the connection between %s and %s was cut during %s"
                : "%s has lost %s during %s, and cannot ask why: too many open files "
                  "(raise 'ulimit -n')",
            me, other, what);
    return group_break(g, -1, err);
}
