/* worker/nn/linreg.c - a linear regression: the model whose result everyone can check */
#include "worker/nn/model.h"

const struct model_type model_linreg = {
    .name = "linreg",
    .summary = "linear regression, mean squared error",
    .task = TASK_REGRESS,
    .optimizer = "sgd",
    .layers = LAYERS({LAYER_LINEAR, "linear"}),
};
