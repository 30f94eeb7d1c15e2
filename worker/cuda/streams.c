/* worker/cuda/streams.c - see engine_impl.h: the current device, and dependencies
 * between streams
 *
 * Kernels go to the device that is current at launch; stages on two devices wait for
 * each other by events.
 */
#include "worker/cuda/engine_impl.h"

void stage_enter(const struct stage *s)
{
    CUDA(cudaSetDevice(s->device));
}

void stage_left(const struct stage *s, cudaStream_t to)
{
    stream_follow(to, s->main, s->left);
}

void stages_fork(struct engine *e)
{
    for (int i = 1; i < e->nstages; i++)
        stage_left(first_of(e), e->stages[i].main);
}

void stages_join(struct engine *e)
{
    for (int i = 1; i < e->nstages; i++)
        stage_left(&e->stages[i], first_of(e)->main);
    stage_enter(first_of(e));
}

void stage_doing(const struct stage *s, const char *what)
{
    cuda_doing("%s%s", what, s->where);
}
