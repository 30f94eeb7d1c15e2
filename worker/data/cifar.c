/* worker/data/cifar.c - see cifar.h */
#include "worker/data/cifar.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/data/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SIDE = 32, COLOURS = 3, PIXELS = COLOURS * SIDE * SIDE, BATCHES = 5 };

/* The two sets, distinguished by the name of their first file. */
static const struct kind {
    const char *train, *test; /* train: a pattern of the batch's number, from 1 */
    int batches, labels, classes;
} kinds[] = {{"data_batch_%d.bin", "test_batch.bin", BATCHES, 1, 10},
             {"train.bin", "test.bin", 1, 2, 100}};

static char *path_of(const char *folder, const char *file, int batch)
{
    char *name = xasprintf(file, batch), *path = xasprintf("%s/%s", folder, name);
    free(name);
    return path;
}

static bool is_there(const char *folder, const char *file, int batch)
{
    char *path = path_of(folder, file, batch);
    bool there = access(path, F_OK) == 0;
    free(path);
    return there;
}

static const struct kind *kind_of(const char *folder)
{
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
        if (is_there(folder, kinds[i].train, 1))
            return &kinds[i];
    return NULL;
}

bool cifar_there(const char *folder)
{
    return kind_of(folder) != NULL;
}

static int take_record(const char *path, FILE *f, const struct kind *kind,
                       struct samples *out, struct ddp_err *err)
{
    uint8_t labels[2];
    size_t n = (size_t)kind->labels;
    if (fread(labels, 1, n, f) != n ||
        fread(out->pixels + out->n * PIXELS, 1, PIXELS, f) != PIXELS)
        return err_errno(err, "cannot read '%s'", path);
    uint8_t label = labels[n - 1];
    if (label >= kind->classes)
        return err_set(err, "'%s': label %u of record %zu is not between 0 and %d", path,
                       label, out->n, kind->classes - 1);
    out->labels[out->n++] = label;
    return 0;
}

/* Adds the file's records to `out`. */
static int read_records(const char *path, const struct kind *kind, struct samples *out,
                        struct ddp_err *err)
{
    struct stat st;
    FILE *f = fopen(path, "rbe");
    size_t size = (size_t)kind->labels + PIXELS;
    int rc = -1;
    if (!f || fstat(fileno(f), &st) < 0) {
        err_errno(err, "cannot open '%s'", path);
    } else if (!S_ISREG(st.st_mode) || st.st_size == 0 ||
               (size_t)st.st_size % size != 0) {
        err_set(err, "'%s' is not of CIFAR's records: %lld bytes are no multiple of %zu",
                path, (long long)st.st_size, size);
    } else if (memory_fits(path, (uint64_t)st.st_size,
                           "IDX files that are not packed are read as they are needed",
                           err) == 0) {
        size_t n = (size_t)st.st_size / size;
        out->pixels = xrealloc(out->pixels, out->n + n, PIXELS);
        out->labels = xrealloc(out->labels, out->n + n, 1);
        rc = 0;
        for (size_t i = 0; i < n && rc == 0; i++)
            rc = take_record(path, f, kind, out, err);
    }
    if (f)
        fclose(f);
    return rc;
}

int cifar_load(const char *folder, struct dataset *out, struct ddp_err *err)
{
    const struct kind *kind = kind_of(folder);
    out->shape = (struct io_shape){COLOURS, SIDE, SIDE, kind->classes};
    int rc = 0;
    for (int i = 1; i <= kind->batches && rc == 0; i++) {
        if (!is_there(folder, kind->train, i))
            continue;
        char *path = path_of(folder, kind->train, i);
        rc = read_records(path, kind, &out->train, err);
        free(path);
    }
    char *path = path_of(folder, kind->test, 0);
    if (rc == 0)
        rc = read_records(path, kind, &out->test, err);
    free(path);
    return rc;
}
