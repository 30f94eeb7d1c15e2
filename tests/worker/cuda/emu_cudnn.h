/* tests/worker/cuda/emu_cudnn.h - see emu.h: what cuDNN's graph API, emu_cudnn_graph.cc,
 * and its arithmetic, emu_cudnn.cc, share
 */
#ifndef EMU_CUDNN_H
#define EMU_CUDNN_H

#include "tests/worker/cuda/emu.h"

#include <cudnn.h>

struct cudnnContext {
    int device;
    cudaStream_t stream = nullptr;
};

/* Images [n][h][w][c], or filters: n outputs. */
struct emu_tensor {
    cudnnDataType_t type;
    int n, c, h, w;
    size_t size() const
    {
        return size_t(n) * size_t(c) * size_t(h) * size_t(w);
    }
};

/* A convolution and what is asked of it: `which` 0 y of x and w, 1 dw of x and dy, 2 dx
 * of w and dy, with beta times what is there added. */
struct emu_convolution {
    int which;
    emu_tensor x, y, w;
    int pad, step;
    bool fits() const;
    /* With x, w and y in memory; what is asked for is written there, times `by`. */
    void compute(void *x, void *w, void *y, float beta, float by) const;
    /* May it be put on the handle's stream? `engine`: each has to be loaded. */
    bool may_ask(cudnnHandle_t h, int engine) const;
};

#endif
