/* worker/data/dataset.c - see dataset.h */
#include "worker/data/dataset.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/data/cifar.h"
#include "worker/data/idx.h"
#include "worker/data/random.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

const struct line dataset_line = {.slope = 2.0, .offset = -1.0, .noise = 0.1};

enum { LINE_TRAIN = 1024, LINE_TEST = 256, CLASSES = 10 };

/* ---- images ---- */

/* One of the four files, from the folder or from the program itself. */
static int read_part(const char *folder, const char *file, int ndim, struct idx *out,
                     struct ddp_err *err)
{
    if (strcmp(folder, "digits") == 0) {
        char *gz = xasprintf("%s.gz", file);
        size_t nbytes = 0;
        const uint8_t *bytes = digits_file(gz, &nbytes);
        int rc = idx_parse(gz, bytes, nbytes, ndim, out, err);
        free(gz);
        return rc;
    }
    char *path = xasprintf("%s/%s", folder, file);
    int rc = idx_read(path, ndim, out, err);
    free(path);
    return rc;
}

static int check_labels(const char *folder, const char *part, const struct idx *images,
                        const struct idx *labels, struct ddp_err *err)
{
    if (images->dims[0] != labels->dims[0])
        return err_set(err, "'%s': %u %s images but %u labels", folder, images->dims[0],
                       part, labels->dims[0]);
    for (size_t i = 0; i < labels->count; i++) {
        if (labels->data[i] >= CLASSES)
            return err_set(err,
                           "'%s/%s-labels-idx1-ubyte': label %u of image %zu is not "
                           "between 0 and %d",
                           folder, part, labels->data[i], i, CLASSES - 1);
    }
    return 0;
}

static int load_images(const char *folder, const char *part, struct samples *out,
                       struct io_shape *shape, struct ddp_err *err)
{
    struct idx images = {0}, labels = {0};
    char *image_file = xasprintf("%s-images-idx3-ubyte", part);
    char *label_file = xasprintf("%s-labels-idx1-ubyte", part);
    int rc = -1;
    if (read_part(folder, image_file, 3, &images, err) == 0 &&
        read_part(folder, label_file, 1, &labels, err) == 0 &&
        check_labels(folder, part, &images, &labels, err) == 0) {
        *shape = (struct io_shape){1, (int)images.dims[1], (int)images.dims[2], CLASSES};
        out->n = images.dims[0];
        out->pixels = images.data;
        out->labels = labels.data;
        out->maps[0] = images.map;
        out->maps[1] = labels.map;
        rc = 0;
    } else {
        idx_finish(&images);
        idx_finish(&labels);
    }
    free(image_file);
    free(label_file);
    return rc;
}

/* Given numbers avoid a pass over all pixels, which for data larger than memory reads
 * the whole file. */
static int normalise(struct dataset *d, const struct normalise *given,
                     struct ddp_err *err)
{
    if (given && given->channels > 0) {
        d->normal = *given;
        if (normalise_spread(&d->normal, d->shape.C, err) < 0)
            return -1;
    } else if (normalise_measure(d->name, d->train.pixels, d->train.n, d->shape.C,
                                 (size_t)d->shape.H * (size_t)d->shape.W, &d->normal,
                                 err) < 0) {
        return -1;
    }
    normalise_table(&d->normal, d->as_float);
    return 0;
}

static int load_image_folder(struct dataset *d, const struct normalise *normal,
                             struct ddp_err *err)
{
    struct io_shape test = {0};
    d->task = TASK_CLASSIFY;
    if (cifar_there(d->name))
        return cifar_load(d->name, d, err) < 0 ? -1 : normalise(d, normal, err);
    if (load_images(d->name, "train", &d->train, &d->shape, err) < 0 ||
        load_images(d->name, "t10k", &d->test, &test, err) < 0)
        return -1;
    if (test.H != d->shape.H || test.W != d->shape.W)
        return err_set(err, "'%s': training images are %dx%d, test images %dx%d", d->name,
                       d->shape.H, d->shape.W, test.H, test.W);
    return normalise(d, normal, err);
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

/* Recognises files by their kind; their readers report errors. */
static int look_for_data(const char *folder, struct ddp_err *err)
{
    static const char *const files[] = {
        "train-images-idx3-ubyte", "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte", "train-labels-idx1-ubyte.gz"};
    struct stat st;
    const char *cure = "'ddprun --fetch-data mnist' brings them into the folder 'mnist'";
    if (stat(folder, &st) < 0)
        return err_errno(err, "no data in '%s' (%s)", folder, cure);
    if (!S_ISDIR(st.st_mode))
        return err_set(err, "no data in '%s': it is no folder (%s)", folder, cure);
    if (access(folder, R_OK | X_OK) < 0)
        return err_errno(err, "no data in '%s'", folder);
    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        if (data_has(folder, files[i]))
            return 0;
    return cifar_there(folder)
               ? 0
               : err_set(err,
                         "no data in '%s': neither %s (or .gz) nor data_batch_1.bin nor "
                         "train.bin (%s)",
                         folder, files[0], cure);
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
    if (strcmp(name, "digits") != 0 && look_for_data(name, err) < 0)
        return -1;
    if (load_image_folder(out, normal, err) < 0) {
        dataset_finish(out);
        return -1;
    }
    return 0;
}

static void samples_finish(struct samples *s)
{
    if (!s->maps[0].at)
        free(s->pixels);
    if (!s->maps[1].at)
        free(s->labels);
    file_map_close(&s->maps[0]);
    file_map_close(&s->maps[1]);
    free(s->inputs);
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

static void take_row(const uint8_t *from, const float *as_float, struct augment_move m,
                     int W, float *to)
{
    for (int x = 0; x < W; x++) {
        int u = (m.mirror ? W - 1 - x : x) + m.dx;
        to[x] = as_float[u >= 0 && u < W ? from[u] : 0];
    }
}

static void take_moved(const struct dataset *d, const uint8_t *from,
                       struct augment_move m, float *to)
{
    int H = d->shape.H, W = d->shape.W;
    for (int c = 0; c < d->shape.C; c++, from += H * W) {
        for (int y = 0; y < H; y++, to += W) {
            int row = y + m.dy;
            if (row >= 0 && row < H)
                take_row(from + row * W, d->as_float[c], m, W, to);
            else
                for (int x = 0; x < W; x++)
                    to[x] = d->as_float[c][0];
        }
    }
}

static struct batch gather_points(const struct dataset *d, const struct samples *part,
                                  const uint32_t *which, int n, struct batch_buf *buf)
{
    size_t per = (size_t)d->shape.C * (size_t)d->shape.H * (size_t)d->shape.W;
    size_t outputs = (size_t)d->shape.outputs;
    for (size_t i = 0; i < (size_t)n; i++) {
        memcpy(buf->x + i * per, part->inputs + which[i] * per, per * sizeof(float));
        memcpy(buf->targets + i * outputs, part->targets + which[i] * outputs,
               outputs * sizeof(float));
    }
    return (struct batch){.x = buf->x, .targets = buf->targets, .n = n};
}

struct batch dataset_gather(const struct dataset *d, const struct samples *part,
                            const struct augment *how, const uint32_t *which, int n,
                            struct batch_buf *buf)
{
    if (d->task == TASK_REGRESS)
        return gather_points(d, part, which, n, buf);
    if (d->task == TASK_TOKENS) {
        tokens_gather(d, part, which, n, buf->tokens);
        return (struct batch){.tokens = buf->tokens, .n = n};
    }
    size_t per = (size_t)d->shape.C * (size_t)d->shape.H * (size_t)d->shape.W;
    float *to = buf->x;
    for (int i = 0; i < n; i++, to += per) {
        const uint8_t *from = part->pixels + which[i] * per;
        if (how && (how->pad > 0 || how->flip))
            take_moved(d, from, augment_draw(how, which[i]), to);
        else
            take_image(d, from, to);
        buf->labels[i] = part->labels[which[i]];
    }
    return (struct batch){.x = buf->x, .labels = buf->labels, .n = n};
}
