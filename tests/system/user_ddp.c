/* What somebody writes against the installed library: one step of all ranks. */
#include <ddprun/ddp.h>
#include <stdio.h>

int main(void)
{
    struct ddp_err err;
    struct ddp_group *g = ddp_group_init(NULL, &err);
    if (!g)
        return fprintf(stderr, "%s\n", err.text), 1;
    float w = 3, grad;
    struct ddp_param param = {"w", &w, &grad, 1, false};
    struct ddp_parallel *p = ddp_parallel_create(g, &param, 1, NULL, &err);
    if (!p || ddp_parallel_begin(p, 1, &err) < 0)
        return fprintf(stderr, "%s\n", err.text), 1;
    grad = (float)(2 * ddp_group_rank(g));
    ddp_parallel_ready(p, 0);
    struct ddp_step step = {0};
    if (ddp_parallel_step(p, 1, &step, &err) < 0)
        return fprintf(stderr, "%s\n", err.text), 1;
    printf("step %g\n", (double)w);
    ddp_parallel_destroy(p);
    ddp_group_destroy(g);
    return 0;
}
