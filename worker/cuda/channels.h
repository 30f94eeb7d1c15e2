/* worker/cuda/channels.h - up to two sums for each channel of images; for .cu files only
 *
 * A block has a group of channels and a part of their places, and its threads are laid
 * out so that neighbours read neighbours: with channels last 32 channels and 8 lanes,
 * else one channel and 256 lanes. Each thread adds up floats, a block its lanes, and
 * channels_whole() the parts: always in the same order.
 */
#ifndef WORKER_CUDA_CHANNELS_H
#define WORKER_CUDA_CHANNELS_H

#include "worker/cuda/device.h"

enum { SUMS = 2, MOST_PARTS = 64, MOST_GROUPS = 1024 };

struct channels {
    uint32_t C, inner;      /* places of an image */
    uint32_t count;         /* of all, for each channel */
    uint32_t width, groups; /* channels of a block; blocks beside each other */
    uint32_t parts;
    bool last;
};

/* parts * C is at most CUDA_ROOM / SUMS: of 32 wide groups there are at most 1024. */
static inline struct channels channels_of(struct cuda_map m)
{
    struct channels s;
    bool last = m.last || m.H * m.W == 1;
    s.C = (uint32_t)m.C;
    s.inner = (uint32_t)m.H * (uint32_t)m.W;
    s.count = (uint32_t)m.n * s.inner;
    s.last = last;
    s.width = last ? 32 : 1;
    s.groups = (s.C + s.width - 1) / s.width;
    uint32_t lanes = THREADS / s.width, worth = s.count / (lanes * 16) + 1;
    uint32_t fits = MOST_GROUPS / s.groups > 0 ? MOST_GROUPS / s.groups : 1;
    s.parts = worth < fits ? worth : fits;
    s.parts = s.parts < MOST_PARTS ? s.parts : MOST_PARTS;
    return s;
}

/* of.add(at, c, sums) adds what lies at element `at`, of channel c. */
template <class F>
static __device__ inline void channels_sum(const struct channels &s, const F &of,
                                           float *room)
{
    __shared__ float sums[SUMS][THREADS];
    uint32_t t = threadIdx.x, part = blockIdx.x / s.groups, lanes = THREADS / s.width;
    uint32_t c = blockIdx.x % s.groups * s.width + t % s.width, lane = t / s.width;
    float mine[SUMS] = {0, 0};
    for (uint32_t q = part * lanes + lane; c < s.C && q < s.count; q += s.parts * lanes) {
        uint32_t at =
            s.last ? q * s.C + c : (q / s.inner * s.C + c) * s.inner + q % s.inner;
        of.add(at, c, mine);
    }
    for (int k = 0; k < SUMS; k++)
        sums[k][t] = mine[k];
    __syncthreads();
    /* from up to 256 lanes to 16, or from 8 to one */
    uint32_t left = s.width > 1 ? s.width : 16;
    for (int k = 0; k < SUMS && t < left; k++) {
        float sum = 0;
        for (uint32_t i = t; i < THREADS; i += left)
            sum += sums[k][i];
        mine[k] = sum;
    }
    __syncthreads();
    for (int k = 0; k < SUMS && t < left; k++)
        sums[k][t] = mine[k];
    __syncthreads();
    if (lane > 0 || c >= s.C)
        return;
    for (int k = 0; k < SUMS; k++) {
        float sum = 0;
        for (uint32_t i = t; i < left; i += s.width)
            sum += sums[k][i];
        room[((uint32_t)k * s.parts + part) * s.C + c] = sum;
    }
}

static __device__ inline double channels_whole(const struct channels &s,
                                               const float *room, uint32_t c, uint32_t k)
{
    double sum = 0;
    for (uint32_t p = 0; p < s.parts; p++)
        sum += (double)room[(k * s.parts + p) * s.C + c];
    return sum;
}

#endif
