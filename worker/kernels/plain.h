/* worker/kernels/plain.h - the functions of the reference engine outside plain.c */
#ifndef WORKER_KERNELS_PLAIN_H
#define WORKER_KERNELS_PLAIN_H

#include "worker/kernels/sequence.h"

struct norm_plan *plain_norm_plan(struct norm_shape s, struct ddp_err *err);
void plain_norm_plan_free(struct norm_plan *p);
void plain_norm_share(struct norm_plan *p, norm_sum_fn sum, void *arg);
void plain_norm(struct norm_plan *p, int n, const float *x, const float *w,
                const float *bias, float *running, bool learn, const float *shortcut,
                float *y);
void plain_norm_back(struct norm_plan *p, int n, const float *x, const float *w,
                     const float *y, const float *dy, float *dw, float *dbias, float *dx,
                     float *dshortcut);
void plain_mean(struct map_shape s, int n, const float *x, float *y);
void plain_mean_back(struct map_shape s, int n, const float *dy, float *dx);
size_t plain_map_floats(struct map_shape s);

#endif
