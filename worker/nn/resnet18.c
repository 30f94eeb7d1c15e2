/* worker/nn/resnet18.c - the residual network of 18 layers, for images of about 32x32
 *
 * He, Zhang, Ren and Sun, "Deep residual learning for image recognition", CVPR 2016, with
 * the stem that is usual for CIFAR: a 3x3 convolution with stride 1, and no pooling.
 * Names and shapes are those of torchvision.models.resnet18 whose `conv1` was replaced by
 * Conv2d(3, 64, 3, 1, 1, bias=False) and `maxpool` by Identity().
 *
 * A block that changes the shape has its shortcut normalised last, so that layers are in
 * the order of PyTorch's parameters: the sum is the same either way.
 */
#include "worker/nn/model.h"

#define CONV3(in, name, width, step)                                             \
    {                                                                            \
        LAYER_CONV, name, .outputs = width, .size = 3, .stride = step, .pad = 1, \
                          .bare = true, .from = in                               \
    }
#define NORM(name, ...)               \
    {                                 \
        LAYER_NORM, name, __VA_ARGS__ \
    }

/* x + f(x) */
#define BLOCK(name, width)                                              \
    CONV3(1, name ".conv1", width, 1), NORM(name ".bn1", .relu = true), \
        CONV3(1, name ".conv2", width, 1),                              \
        NORM(name ".bn2", .relu = true, .shortcut = 4)

/* g(x) + f(x), half as high and wide */
#define HALVING_BLOCK(name, width)                                           \
    CONV3(1, name ".conv1", width, 2), NORM(name ".bn1", .relu = true),      \
        CONV3(1, name ".conv2", width, 1), NORM(name ".bn2", .relu = false), \
        {LAYER_CONV,  name ".downsample.0", .outputs = width, .size = 1,     \
         .stride = 2, .bare = true,         .from = 5},                      \
        NORM(name ".downsample.1", .relu = true, .shortcut = 2)

const struct model_type model_resnet18 = {
    .name = "resnet18",
    .task = TASK_CLASSIFY,
    .optimizer = "sgd",
    .layers =
        LAYERS(CONV3(1, "conv1", 64, 1), NORM("bn1", .relu = true), BLOCK("layer1.0", 64),
               BLOCK("layer1.1", 64), HALVING_BLOCK("layer2.0", 128),
               BLOCK("layer2.1", 128), HALVING_BLOCK("layer3.0", 256),
               BLOCK("layer3.1", 256), HALVING_BLOCK("layer4.0", 512),
               BLOCK("layer4.1", 512), {LAYER_MEAN, "avgpool"}, {LAYER_LINEAR, "fc"}),
};
