/* worker/cuda/conv_graph.c - see conv_graph.h
 *
 * Dimensions are given as N, C, H, W; the strides describe that channels are last.
 */
#include "worker/cuda/conv_graph.h"

#include "common/mem.h"

static const int64_t uids[] = {'x', 'w', 'y'};

/* [N,C,H,W] */
static cudnnBackendDescriptor_t make_tensor(struct dnn_graph *g, int64_t uid,
                                            const struct convolution *s, int N, int C,
                                            int H, int W, int alignment)
{
    return dnn_tensor(
        g, &(struct dnn_tensor){.uid = uid,
                                .dims = {N, C, H, W},
                                .strides = {(int64_t)C * H * W, 1, (int64_t)W * C, C},
                                .type = s->type,
                                .alignment = alignment});
}

static cudnnBackendDescriptor_t make_convolution(struct dnn_graph *g,
                                                 const struct convolution *s)
{
    cudnnDataType_t sums = CUDNN_DATA_FLOAT;
    cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
    const int64_t pads[] = {s->pad, s->pad}, strides[] = {s->stride, s->stride};
    const int64_t dilations[] = {1, 1};
    cudnnBackendDescriptor_t c = dnn_begin(g, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    dnn_put(g, c, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &sums);
    dnn_put(g, c, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1,
            &mode);
    dnn_put_number(g, c, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 2);
    dnn_put(g, c, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    dnn_put(g, c, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, CUDNN_TYPE_INT64, 2, pads);
    dnn_put(g, c, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, 2, dilations);
    dnn_put(g, c, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, 2, strides);
    dnn_end(g, c);
    return c;
}

/* The three kinds of operation, and the names of their attributes. */
static const struct {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t x, w, y, convolution, alpha, beta;
} operations[PASSES] = {
    [PASS_FORWARD] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA},
    [PASS_WEIGHTS] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA},
    [PASS_INPUTS] = {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA},
};

struct dnn_graph *conv_graph_make(cudnnHandle_t dnn, const struct convolution *s)
{
    struct dnn_graph *g = dnn_graph_make(s->tensor_cores, s->deterministic);
    float one = 1, beta = s->adds ? 1 : 0;
    cudnnBackendDescriptor_t x = make_tensor(g, uids[0], s, s->n, s->C, s->H, s->W, 16);
    cudnnBackendDescriptor_t w =
        make_tensor(g, uids[1], s, s->K, s->C, s->R, s->R, s->w_alignment);
    cudnnBackendDescriptor_t y = make_tensor(g, uids[2], s, s->n, s->K, s->OH, s->OW, 16);
    cudnnBackendDescriptor_t c = make_convolution(g, s);
    cudnnBackendDescriptor_t o = dnn_begin(g, operations[s->pass].type);
    dnn_put_part(g, o, operations[s->pass].x, x);
    dnn_put_part(g, o, operations[s->pass].w, w);
    dnn_put_part(g, o, operations[s->pass].y, y);
    dnn_put_part(g, o, operations[s->pass].convolution, c);
    dnn_put(g, o, operations[s->pass].alpha, CUDNN_TYPE_FLOAT, 1, &one);
    dnn_put(g, o, operations[s->pass].beta, CUDNN_TYPE_FLOAT, 1, &beta);
    dnn_end(g, o);
    dnn_graph_list(g, dnn, &o, 1);
    return g;
}

cudnnStatus_t conv_graph_play(cudnnBackendDescriptor_t plan, cudnnHandle_t dnn,
                              const void *x, const void *w, const void *y,
                              void *workspace)
{
    const void *places[] = {x, w, y};
    return dnn_graph_play(plan, dnn, ARRAY_LEN(places), uids, places, workspace);
}
