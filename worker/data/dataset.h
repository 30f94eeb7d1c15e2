/* worker/data/dataset.h - training and test data: images, tokens, or a synthetic line
 *
 * Images are kept as bytes, in memory or in a mapped file, and become floats when a
 * batch is gathered (those of a .npy file may be floats, and are used as they are): by
 * the formula of worker/data/normalise.h, after the augmentation of
 * worker/kernels/augment.h. There is no loader thread: gathering 64 MNIST images takes 24
 * us, a thousandth of a step of cnn.
 *
 * Owned by its loader; immutable afterwards.
 */
#ifndef WORKER_DATA_DATASET_H
#define WORKER_DATA_DATASET_H

#include "common/file_map.h"
#include "include/ddprun/err.h"
#include "worker/data/normalise.h"
#include "worker/kernels/augment.h"
#include "worker/nn/model.h"

#include <stddef.h>
#include <stdint.h>

/* One part. Images: pixels or inputs, and labels; the line: inputs and targets; or
 * tokens. */
struct samples {
    size_t n;
    uint8_t *pixels;     /* owned, or in `map`: [n, C, H, W] */
    float *inputs;       /* the same as floats */
    uint32_t *labels;    /* owned, [n] */
    float *targets;      /* owned, [n, outputs] */
    const void *tokens;  /* in `map` of the training part: [n * W + 1] */
    struct file_map map; /* owned */
};

struct dataset {
    const char *name; /* "digits", "synthetic", the folder or the file; borrowed */
    enum task task;
    struct io_shape shape;
    struct samples train, test;
    int token_bytes;                         /* 1, 2, 4 */
    struct normalise normal;                 /* numbers for each channel */
    float as_float[NORMALISE_CHANNELS][256]; /* a pixel of each, normalised */
};

/* `synthetic`: y = slope * x + offset, plus normal noise. */
extern const struct line {
    double slope, offset, noise;
} dataset_line;

/* `name`: "digits" (embedded in the program), "synthetic", or a folder with
 * train-images-idx3-ubyte, train-labels-idx1-ubyte and the same with t10k, each plain
 * or .gz; train-images.npy, train-labels.npy and the same with test; CIFAR's binary
 * records, or folders of images (worker/data/images.h). The
 * largest label of training says how many classes there are; of IDX files at least 10.
 * `name` is borrowed.
 * `normal`: the mean and deviation of pixels; NULL or without channels: those of the
 * training images. `seed` is for synthetic data. */
int dataset_load(const char *name, const struct normalise *normal, uint64_t seed,
                 struct dataset *out, struct ddp_err *err);
/* TASK_TOKENS, from a file: a sample is `context` tokens and the one that follows, of
 * a vocabulary of `vocabulary`; the last tenth of the samples, at most 1000, is the
 * test part. A file whose name ends in ".bin" holds tokens of 16 bits, as nanoGPT
 * writes them, or begins with llm.c's header, which says whether they have 16 or 32;
 * ".npy": an array of integers. Any other file is text, one token per byte. */
int tokens_load(const char *name, int context, int vocabulary, struct dataset *out,
                struct ddp_err *err);
/* Samples which[0..n) of `part`, each with the token that follows it. */
void tokens_gather(const struct dataset *d, const struct samples *part,
                   const uint32_t *which, int n, uint32_t *out);
void dataset_finish(struct dataset *d); /* frees; a zeroed struct is allowed */

/* A batch of at most `room` samples, owning its arrays. */
struct batch_buf {
    float *x;
    uint32_t *labels;
    float *targets;
    uint32_t *tokens;
};
void batch_buf_init(struct batch_buf *b, const struct dataset *d, int room);
void batch_buf_finish(struct batch_buf *b);

/* Gathers samples which[0..n) of `part` (one of d's two), in that order, images
 * augmented as `how` says (NULL: not at all). The result borrows from `buf` until the
 * next call. */
struct batch dataset_gather(const struct dataset *d, const struct samples *part,
                            const struct augment *how, const uint32_t *which, int n,
                            struct batch_buf *buf);

#endif
