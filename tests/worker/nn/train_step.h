/* tests/worker/nn/train_step.h - a whole model forward and backward, for tests and bench;
 * the engines run it in parts
 */
#ifndef TESTS_WORKER_NN_TRAIN_STEP_H
#define TESTS_WORKER_NN_TRAIN_STEP_H

#include "worker/nn/model.h"

/* Returns the loss; the gradients are in model_grads(). */
static inline float train_step(struct model *m, struct model_pass pass)
{
    int correct;
    model_pass_forward(m, &pass, 0, model_layers(m));
    float loss = model_pass_loss(m, &pass, &correct);
    model_pass_back(m, &pass, 0, model_layers(m));
    return loss;
}

#endif
