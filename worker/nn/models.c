/* worker/nn/models.c - the small models, a line for each layer */
#include "worker/nn/model.h"

/* A linear regression: the model whose result everyone can check. */
const struct model_type model_linreg = {
    .name = "linreg",
    .task = TASK_REGRESS,
    .optimizer = "sgd",
    .layers = LAYERS({LAYER_LINEAR, "linear"}),
};

/* Two small linear layers with a ReLU between them, for whatever data there are:
 * https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html, class ToyModel. */
const struct model_type model_toy = {
    .name = "toy",
    .task = TASK_CLASSIFY,
    .optimizer = "adam",
    .layers = LAYERS({LAYER_LINEAR, "net1", .outputs = 10, .relu = true},
                     {LAYER_LINEAR, "net2"}),
};

/* Two hidden layers of 512. */
const struct model_type model_mlp = {
    .name = "mlp",
    .task = TASK_CLASSIFY,
    .optimizer = "adam",
    .layers = LAYERS({LAYER_LINEAR, "fc1", .outputs = 512, .relu = true},
                     {LAYER_LINEAR, "fc2", .outputs = 512, .relu = true},
                     {LAYER_LINEAR, "fc3"}),
};

/* PyTorch's MNIST example, for images of any size:
 * https://github.com/pytorch/examples, mnist/main.py, class Net.
 */
const struct model_type model_cnn = {
    .name = "cnn",
    .task = TASK_CLASSIFY,
    .optimizer = "adadelta",
    .layers = LAYERS({LAYER_CONV, "conv1", .outputs = 32, .size = 3, .relu = true},
                     {LAYER_CONV, "conv2", .outputs = 64, .size = 3, .relu = true,
                      .pool = true, .dropout = 0.25f},
                     {LAYER_LINEAR, "fc1", .outputs = 128, .relu = true, .dropout = 0.5f},
                     {LAYER_LINEAR, "fc2"}),
};
