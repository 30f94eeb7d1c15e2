/* launcher/job/mpi_absent.c - detects a rank that exits without calling MPI_Init
 *
 * MPI_Init waits for all ranks of the job. A rank that exits with status 0 without
 * calling it is not a failure by itself, but the other ranks would wait forever. mpirun
 * ends such a job, too. A rank that only queries PMIx counts as in MPI while it is
 * connected: hence ABSENT_MS before the job is ended.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/job_impl.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"

#include <stdlib.h>

enum { ABSENT_MS = 2000 };

/* 1 + a rank that is in MPI; 0: none. */
static uint32_t rank_in_mpi(const struct job *j)
{
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (j->nodes[i].in_mpi && job_node_connected(&j->nodes[i]))
            return j->nodes[i].in_mpi;
    }
    return 0;
}

static void on_absent(evutil_socket_t fd, short what, void *arg)
{
    struct job *j = arg;
    uint32_t waits = j->absent ? rank_in_mpi(j) : 0;
    if (!waits || j->state != JOB_RUNNING)
        return;
    job_fail(j, (struct cause){
                    .kind = CAUSE_ABORT,
                    .rank = (int)j->absent - 1,
                    .code = 1,
                    .at_ns = j->ranks[j->absent - 1].at_ns,
                    .text = xasprintf("exited with status 0 without calling MPI_Init, in "
                                      "which rank %u waits for it",
                                      waits - 1)});
}

int job_open_absent(struct job *j, struct ddp_err *err)
{
    j->absent_timer = evtimer_new(loop_base(j->loop), on_absent, j);
    return j->absent_timer ? 0 : err_set(err, "cannot make an event");
}

void job_reset_absent(struct job *j)
{
    for (unsigned i = 0; i < j->alloc->nnodes; i++)
        j->nodes[i].in_mpi = 0;
    j->absent = 0;
    event_del(j->absent_timer);
}

int job_handle_member(struct job *j, unsigned node, const struct frame *f,
                      struct ddp_err *err)
{
    const struct msg_member *m = f->m;
    if (!job_rank_is_of(j, m->rank, node))
        return err_set(err, "the MPI state of another node's rank");
    if (m->state == MEMBER_ABSENT)
        j->absent = 1 + m->rank;
    else
        j->nodes[node].in_mpi = m->state == MEMBER_JOINED ? 1 + m->rank : 0;
    if (j->absent && rank_in_mpi(j) && !evtimer_pending(j->absent_timer, NULL))
        job_arm(j->absent_timer, ABSENT_MS);
    return 0;
}
