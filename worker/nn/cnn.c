/* worker/nn/cnn.c - the network of PyTorch's MNIST example, for images of any size
 *
 * https://github.com/pytorch/examples, mnist/main.py, class Net.
 */
#include "worker/nn/model.h"

const struct model_type model_cnn = {
    .name = "cnn",
    .summary = "PyTorch's MNIST example: two convolutions, two linear layers",
    .task = TASK_CLASSIFY,
    .optimizer = "adadelta",
    .layers = LAYERS({LAYER_CONV, "conv1", .outputs = 32, .size = 3, .relu = true},
                     {LAYER_CONV, "conv2", .outputs = 64, .size = 3, .relu = true,
                      .pool = true, .dropout = 0.25f},
                     {LAYER_LINEAR, "fc1", .outputs = 128, .relu = true, .dropout = 0.5f},
                     {LAYER_LINEAR, "fc2"}),
};
