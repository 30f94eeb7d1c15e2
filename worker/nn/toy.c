/* worker/nn/toy.c - two small linear layers with a ReLU between them: the model of
 * PyTorch's DistributedDataParallel tutorial, for whatever data there are
 *
 * https://docs.pytorch.org/tutorials/intermediate/ddp_tutorial.html, class ToyModel.
 */
#include "worker/nn/model.h"

const struct model_type model_toy = {
    .name = "toy",
    .summary = "the tutorial's two linear layers, 10 units between them",
    .task = TASK_CLASSIFY,
    .optimizer = "adam",
    .layers = LAYERS({LAYER_LINEAR, "net1", .outputs = 10, .relu = true},
                     {LAYER_LINEAR, "net2"}),
};
