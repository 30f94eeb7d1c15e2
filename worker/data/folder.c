/* worker/data/folder.c - see images.h */
#include "worker/data/images.h"

#include "common/err.h"
#include "common/folder.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "common/strv.h"
#include "worker/data/memory.h"
#include "worker/kernels/pool.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

/* ---- lists of names ---- */

static int no_dot(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static int is_image_file(const struct dirent *e)
{
    const char *dot = strrchr(e->d_name, '.');
    return no_dot(e) && dot &&
           (strcasecmp(dot, ".png") == 0 || strcasecmp(dot, ".jpg") == 0 ||
            strcasecmp(dot, ".jpeg") == 0);
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* The paths of what is in a folder, in order. */
static int list(const char *folder, int (*wanted)(const struct dirent *),
                struct strv *out, struct ddp_err *err)
{
    struct dirent **found;
    int n = scandir(folder, &found, wanted, by_bytes);
    if (n < 0)
        return err_errno(err, "cannot read '%s'", folder);
    for (int i = 0; i < n; i++) {
        strv_pushf(out, "%s/%s", folder, found[i]->d_name);
        free(found[i]);
    }
    free(found);
    return 0;
}

static int list_classes(const char *folder, struct strv *out, struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv all = {0};
    TRY(list(folder, no_dot, &all, err));
    for (size_t i = 0; i < all.n; i++)
        if (is_folder(all.v[i]))
            strv_push(out, all.v[i]);
    return 0;
}

/* ---- decoding ---- */

struct decoding {
    const struct strv *paths;
    struct io_shape shape;
    uint8_t *pixels;
    struct ddp_err *errors; /* of each part; "": none */
};

static void decode_one(int i, int part, void *arg)
{
    const struct decoding *d = arg;
    struct io_shape shape = d->shape;
    size_t per = (size_t)shape.C * (size_t)shape.H * (size_t)shape.W;
    struct ddp_err *err = &d->errors[part];
    if (!*err->text)
        image_file_read(d->paths->v[i], &shape, d->pixels + (size_t)i * per, err);
}

/* Decodes all; `*shape` without a size gets that of the first. */
static int decode(const char *folder, const struct strv *paths, struct io_shape *shape,
                  struct samples *out, struct ddp_err *err)
{
    if (shape->W == 0 && image_file_read(paths->v[0], shape, NULL, err) < 0)
        return -1;
    size_t per = 3 * (size_t)shape->H * (size_t)shape->W;
    const char *cure = "convert them to .npy files, which are read as they are needed";
    TRY(memory_fits(folder, (double)paths->n * (double)per, cure, err));
    int parts = pool_threads(), rc = 0;
    struct decoding d = {paths, *shape, xcalloc(paths->n, per),
                         xcalloc((size_t)parts, sizeof *d.errors)};
    pool_each((int)paths->n, decode_one, &d);
    for (int i = 0; i < parts && rc == 0; i++)
        rc = *d.errors[i].text ? err_set(err, "%s", d.errors[i].text) : 0;
    free(d.errors);
    out->n = paths->n;
    out->pixels = d.pixels;
    return rc;
}

/* Paths and labels of all images of a part, which has the classes of training. */
static int list_part(const char *folder, const struct strv *classes, struct strv *paths,
                     struct samples *out, struct ddp_err *err)
{
    for (size_t c = 0; c < classes->n; c++) {
        size_t before = paths->n;
        OWNED char *class = xasprintf("%s%s", folder, strrchr(classes->v[c], '/'));
        TRY(list(class, is_image_file, paths, err));
        if (paths->n == before)
            return err_set(err, "the class '%s' has no .png, .jpg or .jpeg file", class);
        out->labels = xrealloc(out->labels, paths->n, sizeof *out->labels);
        for (size_t i = before; i < paths->n; i++)
            out->labels[i] = (uint32_t)c;
    }
    return 0;
}

static int load_part(const char *folder, const struct strv *classes, struct dataset *d,
                     struct samples *out, struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv paths = {0}, own = {0};
    TRY(list_classes(folder, &own, err));
    TRY(list_part(folder, classes, &paths, out, err));
    return own.n == classes->n ? decode(folder, &paths, &d->shape, out, err)
                               : err_set(err, "'%s' has %zu classes, training has %zu",
                                         folder, own.n, classes->n);
}

int folder_load(struct dataset *out, struct ddp_err *err)
{
    const char *test_name = data_has(out->name, "test") ? "test" : "val";
    OWNED char *train = xasprintf("%s/train", out->name),
               *test = xasprintf("%s/%s", out->name, test_name);
    SCOPED(strv_finish) struct strv classes = {0};
    TRY(list_classes(train, &classes, err));
    if (!is_folder(test))
        return err_set(err, "'%s' has no folder 'test' or 'val' beside 'train'",
                       out->name);
    if (classes.n == 0)
        return err_set(err, "'%s' has no folders of images, one for each class", train);
    out->shape = (struct io_shape){3, 0, 0, (int)classes.n};
    TRY(load_part(train, &classes, out, &out->train, err));
    return load_part(test, &classes, out, &out->test, err);
}
