/* worker/group/nccl_queue.c - see nccl_queue.h */
#include "worker/group/nccl_queue.h"

#include "common/mem.h"

int nccl_mark(struct nccl *n, struct ddp_request *r, cuda_stream s, struct ddp_err *err)
{
    if (n->nidle == 0) {
        cuda_event e;
        if (cuda_check(cuda_api.event_create(&e, CUDA_NO_TIMING), "cuEventCreate", err) <
            0)
            return -1;
        n->events = xrealloc(n->events, n->nevents + 1, sizeof *n->events);
        n->idle = xrealloc(n->idle, n->nevents + 1, sizeof *n->idle);
        n->events[n->nevents++] = n->idle[n->nidle++] = e;
    }
    r->mark = n->idle[--n->nidle];
    return cuda_check(cuda_api.event_record(r->mark, s), "cuEventRecord", err);
}

int nccl_passed(struct nccl *n, struct ddp_request *r, void *comm, struct ddp_err *err)
{
    int error = 0, rc = cuda_api.event_query(r->mark);
    if (rc == 0)
        n->idle[n->nidle++] = r->mark;
    if (rc != CUDA_NOT_READY)
        return rc == 0 ? 1 : cuda_check(rc, "cuEventQuery", err);
    return comm && nccl_api.async_error(comm, &error) == 0
               ? nccl_check(error, "NCCL", err)
               : 0;
}
