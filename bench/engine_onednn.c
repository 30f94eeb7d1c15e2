/* bench/engine_onednn.c - layers through oneDNN's C API (2.6, which Debian 12 has)
 *
 * Images between convolutions lie in the blocked layout that the CPU's widest kernels
 * want; weights are reordered on each call, since they change with each step, whenever
 * the primitive asks for another layout than PyTorch's. ReLU rides on the forward
 * convolution; going back, the mask is applied at the pooled size, as our own engine
 * does.
 */
#include "bench/engines.h"

#include "common/mem.h"
#include "worker/kernels/scratch.h"

#include <dnnl.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call)                                                      \
    do {                                                              \
        dnnl_status_t status_ = (call);                               \
        if (status_ != dnnl_success) {                                \
            fprintf(stderr, "onednn: %s: %d\n", #call, (int)status_); \
            exit(1);                                                  \
        }                                                             \
    } while (0)

static dnnl_engine_t cpu;
static dnnl_stream_t stream;

/* ---- memories and primitives, the short way ---- */

typedef dnnl_memory_desc_t md_t;

static md_t md(int n, const dnnl_dims_t dims, dnnl_format_tag_t tag)
{
    md_t m;
    OK(dnnl_memory_desc_init_by_tag(&m, n, dims, dnnl_f32, tag));
    return m;
}

static dnnl_memory_t room(const md_t *m) /* with memory of its own */
{
    dnnl_memory_t mem;
    OK(dnnl_memory_create(&mem, m, cpu, DNNL_MEMORY_ALLOCATE));
    return mem;
}

static dnnl_memory_t view(const md_t *m) /* of memory named later */
{
    dnnl_memory_t mem;
    OK(dnnl_memory_create(&mem, m, cpu, DNNL_MEMORY_NONE));
    return mem;
}

static void look_at(dnnl_memory_t mem, const void *p)
{
    OK(dnnl_memory_set_data_handle(mem, (void *)(uintptr_t)p));
}

static dnnl_primitive_desc_t plan(const void *desc, dnnl_primitive_attr_t attr,
                                  dnnl_primitive_desc_t hint)
{
    dnnl_primitive_desc_t pd;
    OK(dnnl_primitive_desc_create(&pd, desc, attr, cpu, hint));
    return pd;
}

static const md_t *wants(dnnl_primitive_desc_t pd, dnnl_query_t what)
{
    return dnnl_primitive_desc_query_md(pd, what, 0);
}

static dnnl_primitive_t primitive(dnnl_primitive_desc_t pd)
{
    dnnl_primitive_t p;
    OK(dnnl_primitive_create(&p, pd));
    return p;
}

#define RUN(prim, ...)                                                          \
    do {                                                                        \
        const dnnl_exec_arg_t args_[] = {__VA_ARGS__};                          \
        OK(dnnl_primitive_execute(prim, stream, (int)ARRAY_LEN(args_), args_)); \
        OK(dnnl_stream_wait(stream));                                           \
    } while (0)

/* A memory that a primitive uses, and the one outside: the same when layouts agree. */
struct port {
    dnnl_memory_t outside, inside;
    dnnl_primitive_t in, out; /* reorders, or NULL */
};

static dnnl_primitive_t reorder(const md_t *from, const md_t *to)
{
    dnnl_primitive_desc_t pd;
    OK(dnnl_reorder_primitive_desc_create(&pd, from, cpu, to, cpu, NULL));
    return primitive(pd);
}

static struct port port(const md_t *outside, const md_t *inside)
{
    struct port p = {.outside = view(outside)};
    if (dnnl_memory_desc_equal(outside, inside)) {
        p.inside = p.outside;
        return p;
    }
    p.inside = room(inside);
    p.in = reorder(outside, inside);
    p.out = reorder(inside, outside);
    return p;
}

static void give(struct port *p, const void *data)
{
    look_at(p->outside, data);
    if (p->in)
        RUN(p->in, {DNNL_ARG_FROM, p->outside}, {DNNL_ARG_TO, p->inside});
}

static void take(struct port *p)
{
    if (p->out)
        RUN(p->out, {DNNL_ARG_FROM, p->inside}, {DNNL_ARG_TO, p->outside});
}

static dnnl_primitive_attr_t then_relu(bool relu)
{
    dnnl_primitive_attr_t attr;
    dnnl_post_ops_t ops;
    OK(dnnl_primitive_attr_create(&attr));
    OK(dnnl_post_ops_create(&ops));
    if (relu)
        OK(dnnl_post_ops_append_eltwise(ops, 1, dnnl_eltwise_relu, 0, 0));
    OK(dnnl_primitive_attr_set_post_ops(attr, ops));
    return attr;
}

/* ---- linear ---- */

struct linear_plan {
    struct linear_shape s;
    dnnl_primitive_t forward, data, weights;
    struct port x, w, y, x_back, w_back, dy_data, dy_weights, dx, dw;
    dnnl_memory_t bias, dbias;
    float *g;
};

static struct linear_plan *linear_plan(struct linear_shape s, struct scratches *memory)
{
    struct linear_plan *p = scratch_bytes(memory, sizeof(*p));
    const dnnl_dims_t dx = {s.B, s.C}, dw = {s.K, s.C}, dy = {s.B, s.K}, db = {s.K};
    md_t x = md(2, dx, dnnl_ab), w = md(2, dw, dnnl_ab), y = md(2, dy, dnnl_ab);
    md_t xa = md(2, dx, dnnl_format_tag_any), wa = md(2, dw, dnnl_format_tag_any);
    md_t ya = md(2, dy, dnnl_format_tag_any), b = md(1, db, dnnl_a);
    dnnl_inner_product_desc_t desc;
    OK(dnnl_inner_product_forward_desc_init(&desc, dnnl_forward_training, &xa, &wa, &b,
                                            &ya));
    dnnl_primitive_desc_t pd = plan(&desc, then_relu(s.relu), NULL), back;
    p->s = s;
    p->forward = primitive(pd);
    p->x = port(&x, wants(pd, dnnl_query_src_md));
    p->w = port(&w, wants(pd, dnnl_query_weights_md));
    p->y = port(&y, wants(pd, dnnl_query_dst_md));
    OK(dnnl_inner_product_backward_data_desc_init(&desc, &xa, &wa, &ya));
    back = plan(&desc, NULL, pd);
    p->data = primitive(back);
    p->dx = port(&x, wants(back, dnnl_query_diff_src_md));
    p->w_back = port(&w, wants(back, dnnl_query_weights_md));
    p->dy_data = port(&y, wants(back, dnnl_query_diff_dst_md));
    OK(dnnl_inner_product_backward_weights_desc_init(&desc, &xa, &wa, &b, &ya));
    back = plan(&desc, NULL, pd);
    p->weights = primitive(back);
    p->x_back = port(&x, wants(back, dnnl_query_src_md));
    p->dw = port(&w, wants(back, dnnl_query_diff_weights_md));
    p->dy_weights = port(&y, wants(back, dnnl_query_diff_dst_md));
    p->bias = view(&b);
    p->dbias = view(&b);
    p->g = scratch_in(memory, (size_t)s.B * (size_t)s.K);
    return p; /* whose primitives stay: a benchmark ends soon enough */
}

static void linear(struct linear_plan *p, int n, const float *x, const float *w,
                   const float *bias, float *y)
{
    give(&p->x, x);
    give(&p->w, w);
    look_at(p->bias, bias);
    look_at(p->y.outside, y);
    RUN(p->forward, {DNNL_ARG_SRC, p->x.inside}, {DNNL_ARG_WEIGHTS, p->w.inside},
        {DNNL_ARG_BIAS, p->bias}, {DNNL_ARG_DST, p->y.inside});
    take(&p->y);
}

static void linear_back(struct linear_plan *p, int n, const float *x, const float *w,
                        const float *y, const float *dy, float *dw, float *factors,
                        float *dbias, float *dx)
{
    for (int i = 0; i < n * p->s.K; i++)
        p->g[i] = p->s.relu && !(y[i] > 0) ? 0 : dy[i];
    give(&p->x_back, x);
    give(&p->dy_weights, p->g);
    look_at(p->dw.outside, dw);
    look_at(p->dbias, dbias);
    RUN(p->weights, {DNNL_ARG_SRC, p->x_back.inside},
        {DNNL_ARG_DIFF_DST, p->dy_weights.inside}, {DNNL_ARG_DIFF_WEIGHTS, p->dw.inside},
        {DNNL_ARG_DIFF_BIAS, p->dbias});
    take(&p->dw);
    if (dx == NULL)
        return;
    give(&p->w_back, w);
    give(&p->dy_data, p->g);
    look_at(p->dx.outside, dx);
    RUN(p->data, {DNNL_ARG_WEIGHTS, p->w_back.inside},
        {DNNL_ARG_DIFF_DST, p->dy_data.inside}, {DNNL_ARG_DIFF_SRC, p->dx.inside});
    take(&p->dx);
}

/* ---- convolution ---- */

struct conv_plan {
    struct conv_shape s;
    size_t floats;
    dnnl_primitive_t forward, pool, data, weights, unpool;
    struct port x, w, y, x_back, w_back, dy, dw, dx, full_data, full_weights;
    dnnl_memory_t full, dfull, bias, dbias, workspace;
    float *g;
};

/* Between layers: as the widest kernels of this CPU like it. */
static dnnl_format_tag_t blocked(void)
{
    return dnnl_get_effective_cpu_isa() >= dnnl_cpu_isa_avx512_core ? dnnl_aBcd16b
                                                                    : dnnl_aBcd8b;
}

static void plan_pool(struct conv_plan *p, const md_t *full, const md_t *y,
                      const md_t *y_inside)
{
    const dnnl_dims_t two = {2, 2}, none = {0, 0};
    dnnl_pooling_desc_t desc;
    OK(dnnl_pooling_forward_desc_init(&desc, dnnl_forward_training, dnnl_pooling_max,
                                      full, y_inside, two, two, none, none));
    dnnl_primitive_desc_t pd = plan(&desc, NULL, NULL);
    p->pool = primitive(pd);
    p->workspace = room(wants(pd, dnnl_query_workspace_md));
    p->y = port(y, wants(pd, dnnl_query_dst_md));
    OK(dnnl_pooling_backward_desc_init(&desc, dnnl_pooling_max, full, y_inside, two, two,
                                       none, none));
    p->unpool = primitive(plan(&desc, NULL, pd));
    p->dy = port(y, y_inside);
}

static struct conv_plan *conv_plan(struct conv_shape s, struct scratches *memory)
{
    struct conv_plan *p = scratch_bytes(memory, sizeof(*p));
    int OH = s.H - s.R + 1, OW = s.W - s.R + 1, shrink = s.pool ? 2 : 1;
    const dnnl_dims_t dx = {s.B, s.C, s.H, s.W}, dw = {s.K, s.C, s.R, s.R};
    const dnnl_dims_t df = {s.B, s.K, OH, OW}, dy = {s.B, s.K, OH / shrink, OW / shrink};
    const dnnl_dims_t db = {s.K}, one = {1, 1}, none = {0, 0};
    md_t x = md(4, dx, s.first ? dnnl_nchw : blocked()), w = md(4, dw, dnnl_oihw);
    md_t wa = md(4, dw, dnnl_format_tag_any), b = md(1, db, dnnl_a);
    md_t full = md(4, df, blocked()), y = md(4, dy, s.last ? dnnl_nchw : blocked());
    md_t y_inside = md(4, dy, blocked());
    md_t xa = s.first ? md(4, dx, dnnl_format_tag_any) : x;
    dnnl_convolution_desc_t desc;
    OK(dnnl_convolution_forward_desc_init(&desc, dnnl_forward_training,
                                          dnnl_convolution_direct, &xa, &wa, &b, &full,
                                          one, none, none));
    dnnl_primitive_desc_t pd = plan(&desc, then_relu(true), NULL), back;
    p->s = s;
    p->floats = (size_t)s.K * (size_t)(OH / shrink) * (size_t)(OW / shrink);
    p->forward = primitive(pd);
    p->x = port(&x, wants(pd, dnnl_query_src_md));
    p->w = port(&w, wants(pd, dnnl_query_weights_md));
    p->full = room(&full);
    p->dfull = room(&full);
    if (s.pool)
        plan_pool(p, &full, &y, &y_inside);
    else
        p->y = p->dy = port(&y, &full);
    OK(dnnl_convolution_backward_weights_desc_init(&desc, dnnl_convolution_direct, &xa,
                                                   &wa, &b, &full, one, none, none));
    back = plan(&desc, NULL, pd);
    p->weights = primitive(back);
    p->x_back = port(&x, wants(back, dnnl_query_src_md));
    p->dw = port(&w, wants(back, dnnl_query_diff_weights_md));
    if (!s.first) {
        OK(dnnl_convolution_backward_data_desc_init(&desc, dnnl_convolution_direct, &x,
                                                    &wa, &full, one, none, none));
        back = plan(&desc, NULL, pd);
        p->data = primitive(back);
        p->w_back = port(&w, wants(back, dnnl_query_weights_md));
        p->dx = port(&x, &x);
    }
    p->bias = view(&b);
    p->dbias = view(&b);
    p->g = scratch_in(memory, p->floats * (size_t)s.B);
    return p;
}

static size_t conv_floats(const struct conv_plan *p)
{
    return p->floats; /* K is a multiple of the block in all models */
}

static void conv(struct conv_plan *p, int n, const float *x, const float *w,
                 const float *bias, float *y)
{
    give(&p->x, x);
    give(&p->w, w);
    look_at(p->bias, bias);
    look_at(p->y.outside, y);
    RUN(p->forward, {DNNL_ARG_SRC, p->x.inside}, {DNNL_ARG_WEIGHTS, p->w.inside},
        {DNNL_ARG_BIAS, p->bias}, {DNNL_ARG_DST, p->s.pool ? p->full : p->y.inside});
    if (p->s.pool)
        RUN(p->pool, {DNNL_ARG_SRC, p->full}, {DNNL_ARG_DST, p->y.inside},
            {DNNL_ARG_WORKSPACE, p->workspace});
    take(&p->y);
}

static void conv_back(struct conv_plan *p, int n, const float *x, const float *w,
                      const float *y, const float *dy, float *dw, float *dbias, float *dx)
{
    size_t all = p->floats * (size_t)n;
    for (size_t i = 0; p->s.last && i < all; i++)
        p->g[i] = y[i] > 0 ? dy[i] : 0;
    give(&p->dy, p->s.last ? p->g : dy);
    if (p->s.pool)
        RUN(p->unpool, {DNNL_ARG_DIFF_DST, p->dy.inside}, {DNNL_ARG_DIFF_SRC, p->dfull},
            {DNNL_ARG_WORKSPACE, p->workspace});
    dnnl_memory_t g = p->s.pool ? p->dfull : p->dy.inside;
    give(&p->x_back, x);
    look_at(p->dw.outside, dw);
    look_at(p->dbias, dbias);
    RUN(p->weights, {DNNL_ARG_SRC, p->x_back.inside}, {DNNL_ARG_DIFF_DST, g},
        {DNNL_ARG_DIFF_WEIGHTS, p->dw.inside}, {DNNL_ARG_DIFF_BIAS, p->dbias});
    take(&p->dw);
    if (dx == NULL)
        return;
    give(&p->w_back, w);
    look_at(p->dx.outside, dx);
    RUN(p->data, {DNNL_ARG_WEIGHTS, p->w_back.inside}, {DNNL_ARG_DIFF_DST, g},
        {DNNL_ARG_DIFF_SRC, p->dx.inside});
    size_t in = (size_t)n * (size_t)(p->s.C * p->s.H * p->s.W);
    for (size_t i = 0; i < in; i++)
        dx[i] = x[i] > 0 ? dx[i] : 0;
}

bool use_onednn(struct kernels *k)
{
    omp_set_num_threads(1);
    OK(dnnl_engine_create(&cpu, dnnl_cpu, 0));
    OK(dnnl_stream_create(&stream, cpu, dnnl_stream_default_flags));
    k->name = "onednn";
    TAKE_LAYERS(k);
    return true;
}
