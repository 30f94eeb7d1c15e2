/* worker/nn/mlp.c - two hidden layers of 512 */
#include "worker/nn/model.h"

const struct model_type model_mlp = {
    .name = "mlp",
    .summary = "two hidden layers of 512 with ReLU",
    .task = TASK_CLASSIFY,
    .optimizer = "adam",
    .layers = LAYERS({LAYER_LINEAR, "fc1", .outputs = 512, .relu = true},
                     {LAYER_LINEAR, "fc2", .outputs = 512, .relu = true},
                     {LAYER_LINEAR, "fc3"}),
};
