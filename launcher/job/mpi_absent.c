/* launcher/job/mpi_absent.c - a rank that never comes to MPI
 *
 * MPI_Init waits for all ranks of the job. One that exits with 0 and has not called it is
 * no failure by itself, and nobody else's service would miss it: the others would wait
 * for ever. mpirun ends such a job, too. A rank that asks PMIx something and meets nobody
 * is taken for one in MPI while it is connected; it has some time for that.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/job_impl.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"

#include <stdlib.h>

enum { PATIENCE_MS = 2000 };

/* A rank that is in MPI: 1 + its number; 0: nobody. */
static uint32_t who_waits(const struct job *j)
{
    for (unsigned i = 0; i < j->alloc->nnodes; i++) {
        if (j->nodes[i].in_mpi && job_node_there(&j->nodes[i]))
            return j->nodes[i].in_mpi;
    }
    return 0;
}

static void on_patience(evutil_socket_t fd, short what, void *arg)
{
    struct job *j = arg;
    uint32_t waits = j->absent ? who_waits(j) : 0;
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
    j->patience = evtimer_new(loop_base(j->loop), on_patience, j);
    return j->patience ? 0 : err_set(err, "cannot make an event");
}

void job_forget_absent(struct job *j)
{
    for (unsigned i = 0; i < j->alloc->nnodes; i++)
        j->nodes[i].in_mpi = 0;
    j->absent = 0;
    event_del(j->patience);
}

int job_hear_member(struct job *j, unsigned node, const struct frame *f,
                    struct ddp_err *err)
{
    struct msg_member m;
    if (msg_member_unpack(f, &m, err) < 0)
        return -1;
    if (!job_rank_is_of(j, m.rank, node))
        return err_set(err, "the state of a rank it does not have");
    if (m.state == MEMBER_ABSENT)
        j->absent = 1 + m.rank;
    else
        j->nodes[node].in_mpi = m.state == MEMBER_JOINED ? 1 + m.rank : 0;
    if (j->absent && who_waits(j) && !evtimer_pending(j->patience, NULL))
        job_arm(j->patience, PATIENCE_MS);
    return 0;
}
