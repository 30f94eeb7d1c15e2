/* worker/data/cifar.c - see images.h */
#include "worker/data/images.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/data/memory.h"

#include <string.h>
#include <unistd.h>

enum { SIDE = 32, COLOURS = 3, PIXELS = COLOURS * SIDE * SIDE, BATCHES = 5 };

/* The two sets, distinguished by the name of their first file. */
static const struct kind {
    const char *train[BATCHES], *test;
    int labels, classes;
} kinds[] = {{{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin",
               "data_batch_4.bin", "data_batch_5.bin"},
              "test_batch.bin",
              1,
              10},
             {{"train.bin"}, "test.bin", 2, 100}};

bool data_has(const char *folder, const char *file)
{
    OWNED char *path = xasprintf("%s/%s", folder, file);
    return access(path, F_OK) == 0;
}

/* Copies the file's records to the end of `out`. */
static int read_records(const char *folder, const char *file, const struct kind *kind,
                        struct samples *out, struct ddp_err *err)
{
    OWNED char *path = xasprintf("%s/%s", folder, file);
    SCOPED(file_map_close) struct file_map map = {0};
    TRY(file_map_open(path, &map, err));
    size_t size = (size_t)kind->labels + PIXELS, n = map.bytes / size;
    if (n == 0 || map.bytes % size != 0)
        return err_set(err,
                       "'%s' is not of CIFAR's records: %zu bytes are no multiple of %zu",
                       path, map.bytes, size);
    TRY(memory_fits(path, (double)map.bytes,
                    "IDX files that are not packed are read as they are needed", err));
    TRY(file_map_load(path, &map, err));
    out->pixels = xrealloc(out->pixels, out->n + n, PIXELS);
    out->labels = xrealloc(out->labels, out->n + n, sizeof *out->labels);
    for (const uint8_t *at = map.at; at < map.at + map.bytes; at += size) {
        uint8_t label = at[kind->labels - 1];
        if (label >= kind->classes)
            return err_set(err, "'%s': label %u of record %zu is not between 0 and %d",
                           path, label, out->n, kind->classes - 1);
        memcpy(out->pixels + out->n * PIXELS, at + kind->labels, PIXELS);
        out->labels[out->n++] = label;
    }
    return 0;
}

int cifar_load(struct dataset *out, struct ddp_err *err)
{
    const char *folder = out->name;
    const struct kind *kind = &kinds[data_has(folder, kinds[0].train[0]) ? 0 : 1];
    out->shape = (struct io_shape){COLOURS, SIDE, SIDE, kind->classes};
    for (int i = 0; i < BATCHES && kind->train[i]; i++)
        TRY(read_records(folder, kind->train[i], kind, &out->train, err));
    return read_records(folder, kind->test, kind, &out->test, err);
}
