/* tests/gpu/first_message.c - can NCCL connect two ranks while a collective of another
 * communicator waits on the device? The nccl backend relies on it (doc/gpu.md).
 *
 *     ddprun -np 2 build/tests/worker/first_message
 *
 * Rank 0 starts a sum, then sends its first message; rank 1 receives that before it joins
 * the sum. tests/worker/meson.build runs it without GPUs.
 */
#include "include/ddprun/group.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

enum { COUNT = 4096 };

static struct ddp_err err;

static void check(int ok)
{
    if (ok)
        return;
    fprintf(stderr, "%s\n", err.text);
    exit(1);
}

/* On the device that the group has chosen. */
static float *device(void)
{
    int (*alloc)(uint64_t * at, size_t bytes) = NULL;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    uint64_t at = 0;
    *(void **)&alloc = cuda ? dlsym(cuda, "cuMemAlloc_v2") : NULL;
    snprintf(err.text, sizeof err.text, "no memory on the GPU");
    check(alloc && alloc(&at, COUNT * sizeof(float)) == 0);
    return (float *)(uintptr_t)at;
}

int main(void)
{
    const struct ddp_group_options options = {
        .rank = -1, .backend = "nccl", .timeout_ms = 30000};
    struct ddp_group *g = ddp_group_init(&options, &err);
    check(g != NULL);
    float *sums = device(), *message = device();
    check(ddp_all_reduce(g, sums, COUNT, DDP_F32, DDP_SUM, &err) == 0); /* connects */
    if (ddp_group_rank(g) == 0) {
        struct ddp_request *r = ddp_iall_reduce(g, sums, COUNT, DDP_F32, DDP_SUM, &err);
        check(r != NULL);
        check(ddp_send(g, message, COUNT * sizeof *message, 1, 0, &err) == 0);
        check(ddp_wait(r, &err) == 0);
        puts("yes: the first message passed a sum that waited");
    } else {
        check(ddp_recv(g, message, COUNT * sizeof *message, 0, 0, &err) == 0);
        check(ddp_all_reduce(g, sums, COUNT, DDP_F32, DDP_SUM, &err) == 0);
    }
    ddp_group_destroy(g);
    return 0;
}
