/* worker/cuda/streams.c - see engine_impl.h: the current device, and dependencies
 * between streams
 *
 * Kernels go to the device that is current at launch; stages on two devices wait for
 * each other by events.
 */
#include "worker/cuda/engine_impl.h"

#include <stdio.h>

int stage_enter(const struct stage *s, struct ddp_err *err)
{
    return check_cuda(cudaSetDevice(s->device), "changing the GPU", err);
}

int stage_left(const struct stage *s, cudaStream_t to, struct ddp_err *err)
{
    return stream_follow(to, s->main, s->left, "a batch", err);
}

int stages_fork(struct engine *e, struct ddp_err *err)
{
    for (int i = 1; i < e->nstages; i++)
        TRY(stage_left(first_of(e), e->stages[i].main, err));
    return 0;
}

int stages_join(struct engine *e, struct ddp_err *err)
{
    for (int i = 1; i < e->nstages; i++)
        TRY(stage_left(&e->stages[i], first_of(e)->main, err));
    return stage_enter(first_of(e), err);
}

int stage_launched(const struct stage *s, const char *doing, struct ddp_err *err)
{
    char text[80];
    snprintf(text, sizeof text, "%s, stage %d", doing, s->index + 1);
    return check_launches(s->e->nstages > 1 ? text : doing, err);
}
