/* worker/data/dataset.c - see dataset.h */
#include "worker/data/dataset.h"

#include "common/embedded.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/data/idx.h"
#include "worker/data/images.h"
#include "worker/data/random.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct line dataset_line = {.slope = 2.0, .offset = -1.0, .noise = 0.1};

enum { LINE_TRAIN = 1024, LINE_TEST = 256, MOST_CLASSES = 1 << 24 };

/* ---- images ---- */

/* Of handwritten digits, which the program carries (digits/README.md). */
static int carried_read(const char *path, int ndim, struct idx *out, struct ddp_err *err)
{
    const struct embedded *file = embedded_digits;
    while (strcmp(file->name, strrchr(path, '/') + 1) != 0)
        file++;
    return idx_parse(file->name, (const uint8_t *)file->text, file->bytes, ndim, out,
                     err);
}

/* Files of images and of labels, for each of two parts. */
static const struct pairs {
    const char *images, *labels, *train, *test; /* the ends of names, and their parts */
    int least_classes;                          /* whatever the labels are */
    int (*read)(const char *path, int ndim, struct idx *out, struct ddp_err *err);
} carried =
    {"images-idx3-ubyte.gz", "labels-idx1-ubyte.gz", "train", "t10k", 10, carried_read},
  idx = {"images-idx3-ubyte", "labels-idx1-ubyte", "train", "t10k", 10, idx_read},
  npy = {"images.npy", "labels.npy", "train", "test", 1, npy_read};

/* Copies the labels. *classes 0: there are as many as the largest label says. */
static int take_labels(const char *path, const struct idx *from, int least, int *classes,
                       uint32_t **out, struct ddp_err *err)
{
    if (from->ndim != 1 || from->kind == 'f')
        return err_set(err, "'%s' does not hold one integer for each image", path);
    uint64_t end = (uint64_t)(*classes ? *classes : MOST_CLASSES);
    int most = least - 1;
    *out = xcalloc(from->count, sizeof **out);
    for (size_t i = 0; i < from->count; i++) {
        uint64_t label = npy_integer(from, i);
        bool negative = from->kind == 'i' && label >> 63;
        if (label >= end)
            return err_set(
                err,
                "'%s': label %s%" PRIu64 " of image %zu is not between 0 and %" PRIu64,
                path, negative ? "-" : "", negative ? -label : label, i, end - 1);
        (*out)[i] = (uint32_t)label;
        most = (int)label > most ? (int)label : most;
    }
    *classes = *classes ? *classes : most + 1;
    return 0;
}

/* Gives the images to `out`; of the test part the shape has to be that of training. */
static int take_images(const char *path, struct idx *from, struct samples *out,
                       struct io_shape *shape, struct ddp_err *err)
{
    bool bytes = from->kind == 'u' && from->width == 1, test = shape->C > 0;
    if ((!bytes && from->kind != 'f') || from->ndim < 3 ||
        from->count / from->dims[0] > INT_MAX)
        return err_set(
            err, "'%s' does not hold images of uint8 or float32, [N,H,W] or [N,C,H,W]",
            path);
    const uint32_t *d = from->dims + from->ndim - 2;
    int C = from->ndim == 4 ? (int)d[-1] : 1, H = (int)d[0], W = (int)d[1];
    if (bytes && C > NORMALISE_CHANNELS)
        return err_set(err, "'%s': images of %d channels have to be float32", path, C);
    if (test && (H != shape->H || W != shape->W || C != shape->C))
        return err_set(err, "'%s': training images are %dx%dx%d, test images %dx%dx%d",
                       path, shape->C, shape->H, shape->W, C, H, W);
    *shape = (struct io_shape){C, H, W, shape->outputs};
    out->n = from->dims[0];
    out->pixels = bytes ? from->data : NULL;
    out->inputs = bytes ? NULL : (float *)(void *)from->data;
    out->map = from->map;
    *from = (struct idx){0};
    return 0;
}

static int load_part(const char *folder, const struct pairs *as, const char *part,
                     struct samples *out, struct io_shape *shape, struct ddp_err *err)
{
    SCOPED(idx_finish) struct idx images = {0}, labels = {0};
    OWNED char *image_path = xasprintf("%s/%s-%s", folder, part, as->images),
               *label_path = xasprintf("%s/%s-%s", folder, part, as->labels);
    TRY(as->read(image_path, 3, &images, err));
    TRY(as->read(label_path, 1, &labels, err));
    if (images.dims[0] != labels.dims[0])
        return err_set(err, "'%s': %u %s images but %u labels", folder, images.dims[0],
                       part, labels.dims[0]);
    TRY(take_labels(label_path, &labels, as->least_classes, &shape->outputs, &out->labels,
                    err));
    return take_images(image_path, &images, out, shape, err);
}

static int load_pairs(struct dataset *d, const struct pairs *as, struct ddp_err *err)
{
    TRY(load_part(d->name, as, as->train, &d->train, &d->shape, err));
    TRY(load_part(d->name, as, as->test, &d->test, &d->shape, err));
    if (!d->train.pixels == !d->test.pixels)
        return 0;
    return err_set(err, "'%s': training and test images are of different types", d->name);
}

/* Given numbers avoid a pass over all pixels, which for data larger than memory reads
 * the whole file. */
static int normalise(struct dataset *d, const struct normalise *given,
                     struct ddp_err *err)
{
    if (!d->train.pixels) /* floats */
        return given && given->channels > 0
                   ? err_set(err, "--normalize: the float32 of '%s' are used as they are",
                             d->name)
                   : 0;
    if (given && given->channels > 0) {
        d->normal = *given;
        TRY(normalise_spread(&d->normal, d->shape.C, err));
    } else {
        TRY(normalise_measure(d->name, d->train.pixels, d->train.n, d->shape.C,
                              (size_t)d->shape.H * (size_t)d->shape.W, &d->normal, err));
    }
    normalise_table(&d->normal, d->as_float);
    return 0;
}

/* ---- the synthetic line ---- */

static void draw_line(struct samples *s, size_t n, struct random r)
{
    s->n = n;
    s->inputs = xcalloc(n, sizeof *s->inputs);
    s->targets = xcalloc(n, sizeof *s->targets);
    for (size_t i = 0; i < n; i++) {
        double x = random_normal(&r);
        s->inputs[i] = (float)x;
        s->targets[i] = (float)(dataset_line.slope * x + dataset_line.offset +
                                dataset_line.noise * random_normal(&r));
    }
}

/* ---- all kinds ---- */

/* A file or folder that shows what a folder holds, and its reader, which reports what is
 * missing beside it. */
static const struct kind {
    const char *file;
    const struct pairs *pairs;
    int (*load)(struct dataset *d, struct ddp_err *err); /* unless they are pairs */
} kinds[] = {{"data_batch_1.bin", NULL, cifar_load},
             {"train.bin", NULL, cifar_load},
             {"train-images.npy", &npy},
             {"train-labels.npy", &npy},
             {"train-images-idx3-ubyte", &idx},
             {"train-images-idx3-ubyte.gz", &idx},
             {"train-labels-idx1-ubyte", &idx},
             {"train-labels-idx1-ubyte.gz", &idx},
             {"train", NULL, folder_load}};

static const struct kind *find_kind(const char *folder, struct ddp_err *err)
{
    static const struct kind inside = {"digits", &carried};
    struct stat st;
    const char *cure = "'ddprun --fetch-data mnist' brings them into the folder 'mnist'";
    if (strcmp(folder, inside.file) == 0)
        return &inside;
    if (stat(folder, &st) < 0)
        err_errno(err, "no data in '%s' (%s)", folder, cure);
    else if (!S_ISDIR(st.st_mode))
        err_set(
            err,
            "'%s' is a file, and images lie in folders (%s): for a text or tokens say "
            "--model gpt2:vocab=256 or llama (examples/python/tokens.py makes tokens)",
            folder, cure);
    else if (access(folder, R_OK | X_OK) < 0)
        err_errno(err, "no data in '%s'", folder);
    else {
        for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
            if (data_has(folder, kinds[i].file))
                return &kinds[i];
        err_set(err,
                "no data in '%s': neither train-images-idx3-ubyte (or .gz) nor "
                "data_batch_1.bin, train.bin, train-images.npy or a folder 'train' (%s)",
                folder, cure);
    }
    return NULL;
}

int dataset_load(const char *name, const struct normalise *normal, uint64_t seed,
                 struct dataset *out, struct ddp_err *err)
{
    *out = (struct dataset){.name = name};
    if (strcmp(name, "synthetic") == 0) {
        out->task = TASK_REGRESS;
        out->shape = (struct io_shape){1, 1, 1, 1};
        draw_line(&out->train, LINE_TRAIN, random_make(seed, STREAM_TRAIN_LINE));
        draw_line(&out->test, LINE_TEST, random_make(seed, STREAM_TEST_LINE));
        return 0;
    }
    const struct kind *kind = find_kind(name, err);
    if (!kind)
        return -1;
    out->task = TASK_CLASSIFY;
    int rc = kind->pairs ? load_pairs(out, kind->pairs, err) : kind->load(out, err);
    if (rc == 0 && normalise(out, normal, err) == 0)
        return 0;
    dataset_finish(out);
    return -1;
}

static void samples_finish(struct samples *s)
{
    if (!s->map.at) {
        free(s->pixels);
        free(s->inputs);
    }
    file_map_close(&s->map);
    free(s->labels);
    free(s->targets);
}

void dataset_finish(struct dataset *d)
{
    samples_finish(&d->train);
    samples_finish(&d->test);
    *d = (struct dataset){0};
}

void batch_buf_init(struct batch_buf *b, const struct dataset *d, int room)
{
    size_t per = (size_t)d->shape.C * (size_t)d->shape.H * (size_t)d->shape.W;
    size_t n = (size_t)room;
    if (d->task == TASK_TOKENS) {
        *b = (struct batch_buf){.tokens = xcalloc(n * (per + 1), sizeof *b->tokens)};
        return;
    }
    *b = (struct batch_buf){
        .x = xcalloc(n * per, sizeof *b->x),
        .labels = xcalloc(n, sizeof *b->labels),
        .targets = xcalloc(n * (size_t)d->shape.outputs, sizeof *b->targets),
    };
}

void batch_buf_finish(struct batch_buf *b)
{
    free(b->x);
    free(b->labels);
    free(b->targets);
    free(b->tokens);
    *b = (struct batch_buf){0};
}

static void take_image(const struct dataset *d, const uint8_t *from, float *to)
{
    size_t plane = (size_t)d->shape.H * (size_t)d->shape.W;
    for (int c = 0; c < d->shape.C; c++, from += plane, to += plane) {
        const float *as_float = d->as_float[c];
        for (size_t p = 0; p < plane; p++)
            to[p] = as_float[from[p]];
    }
}

/* as_float NULL: `from` are floats. */
static void take_row(const void *from, const float *as_float, struct augment_move m,
                     int W, float *to)
{
    const uint8_t *bytes = from;
    const float *floats = from;
    for (int x = 0; x < W; x++) {
        int u = (m.mirror ? W - 1 - x : x) + m.dx;
        bool in = u >= 0 && u < W;
        to[x] = as_float ? as_float[in ? bytes[u] : 0] : in ? floats[u] : 0;
    }
}

/* `wide`: bytes of a number. */
static void take_moved(const struct dataset *d, const uint8_t *from, size_t wide,
                       struct augment_move m, float *to)
{
    int H = d->shape.H, W = d->shape.W;
    size_t line = (size_t)W * wide;
    for (int c = 0; c < d->shape.C; c++, from += (size_t)H * line) {
        const float *as_float = wide == 1 ? d->as_float[c] : NULL;
        for (int y = 0; y < H; y++, to += W) {
            int row = y + m.dy;
            if (row >= 0 && row < H)
                take_row(from + (size_t)row * line, as_float, m, W, to);
            else
                for (int x = 0; x < W; x++)
                    to[x] = as_float ? as_float[0] : 0;
        }
    }
}

struct batch dataset_gather(const struct dataset *d, const struct samples *part,
                            const struct augment *how, const uint32_t *which, int n,
                            struct batch_buf *buf)
{
    if (d->task == TASK_TOKENS) {
        tokens_gather(d, part, which, n, buf->tokens);
        return (struct batch){.tokens = buf->tokens, .n = n};
    }
    size_t per = (size_t)d->shape.C * (size_t)d->shape.H * (size_t)d->shape.W;
    size_t wide = part->pixels ? 1 : sizeof(float), outputs = (size_t)d->shape.outputs;
    const uint8_t *all = part->pixels ? part->pixels : (const void *)part->inputs;
    float *to = buf->x;
    for (int i = 0; i < n; i++, to += per) {
        const uint8_t *from = all + which[i] * per * wide;
        if (how && (how->pad > 0 || how->flip))
            take_moved(d, from, wide, augment_draw(how, which[i]), to);
        else if (wide > 1)
            memcpy(to, from, per * wide);
        else
            take_image(d, from, to);
        if (part->labels)
            buf->labels[i] = part->labels[which[i]];
        else
            memcpy(buf->targets + (size_t)i * outputs, part->targets + which[i] * outputs,
                   outputs * sizeof *buf->targets);
    }
    return (struct batch){
        .x = buf->x, .labels = buf->labels, .targets = buf->targets, .n = n};
}
