/* worker/safetensors.c - see safetensors.h
 *
 * A reader trusts nothing: every offset is checked against the file's size before an
 * array is returned. Arrays of float32 are returned in place if they are aligned, as
 * the format requires; others are converted into memory of their own.
 */
#include "worker/safetensors.h"

#include "common/err.h"
#include "common/file_map.h"
#include "common/mem.h"
#include "common/output_path.h"
#include "common/scoped.h"
#include "common/write_all.h"
#include "worker/group/half.h"
#include "worker/kernels/scratch.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "arrays are written as they lie");

enum { HEADER_MAX = 100 << 20 }; /* the format's own limit */

/* ---- writing ---- */

bool safetensors_can_name(const char *name)
{
    json_t *text = json_string(name);
    json_decref(text); /* NULL is allowed */
    return text && strncmp(name, "__", 2) != 0;
}

static char *make_header(const struct strv *metadata, const struct array *arrays,
                         size_t n)
{
    json_t *root = json_object(), *meta = json_object();
    for (size_t i = 0; i < metadata->n; i++) {
        const char *entry = metadata->v[i], *eq = strchr(entry, '=');
        OWNED char *key = xstrndup(entry, (size_t)(eq - entry));
        json_object_set_new(meta, key, json_string(eq + 1));
    }
    json_object_set_new(root, "__metadata__", meta);
    size_t offset = 0;
    for (size_t i = 0; i < n; i++) {
        json_t *shape = json_array();
        for (int d = 0; d < arrays[i].ndim; d++)
            json_array_append_new(shape, json_integer(arrays[i].dims[d]));
        size_t bytes = array_count(&arrays[i]) * sizeof(float), end = offset + bytes;
        json_t *row =
            json_pack("{s:s, s:o, s:[I, I], s:I}", "dtype", "F32", "shape", shape,
                      "data_offsets", (json_int_t)offset, (json_int_t)end, "crc32",
                      (json_int_t)crc32_z(0, (const void *)arrays[i].data, bytes));
        json_object_set_new(root, arrays[i].name, row);
        offset = end;
    }
    OWNED char *text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    assert(text); /* names and values are ASCII */
    return xasprintf("%-*s", (int)((strlen(text) + 7) / 8 * 8), text);
}

static int write_content(int fd, const char *header, const struct array *arrays, size_t n)
{
    uint64_t length = strlen(header);
    TRY(write_all(fd, &length, sizeof length));
    TRY(write_all(fd, header, length));
    for (size_t i = 0; i < n; i++)
        TRY(write_all(fd, arrays[i].data, array_count(&arrays[i]) * sizeof(float)));
    return fsync(fd);
}

/* Creates the file empty and locked, so that two writers do not mix. Another user may
 * have put a link or a FIFO there. */
static int open_part(const char *part, struct ddp_err *err)
{
    enum { TURNS = 100 };
    for (int i = 0; i < TURNS; i++) {
        struct stat mine, there;
        SCOPED(close_fd)
        int fd =
            open(part, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
        if (fd < 0)
            return err_errno(err, "cannot create '%s'", part);
        if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
            break;
        if (fstat(fd, &mine) < 0 || stat(part, &there) < 0 ||
            mine.st_ino != there.st_ino || mine.st_dev != there.st_dev)
            continue; /* its previous owner has just renamed the file */
        if (ftruncate(fd, 0) < 0)
            return err_errno(err, "cannot write '%s'", part);
        int ours = fd;
        fd = -1; /* kept */
        return ours;
    }
    return err_set(err, "another process is writing '%s': do two runs save to one place?",
                   part);
}

/* Makes the rename durable. */
static int sync_folder(const char *path)
{
    OWNED char *copy = xstrdup(path);
    SCOPED(close_fd) int fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd < 0 ? -1 : fsync(fd);
    return rc < 0 && errno == EINVAL ? 0 : rc; /* not every file system supports it */
}

int safetensors_write(const char *path, const struct strv *metadata,
                      const struct array *arrays, size_t n, int *lock,
                      struct ddp_err *err)
{
    const char *why_not = output_path_check(path, OUTPUT_PATH_REPLACED);
    if (why_not)
        return err_set(err, "cannot write '%s': %s", path, why_not);
    OWNED char *part = xasprintf("%s.part", path);
    SCOPED(close_fd) int fd = open_part(part, err);
    int rc = -1;
    if (fd < 0)
        return -1;
    OWNED char *header = make_header(metadata, arrays, n);
    if (lock)
        *lock = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if ((lock && *lock < 0) || write_content(fd, header, arrays, n) < 0)
        err_errno(err, "cannot write '%s'", part);
    else if (rename(part, path) < 0)
        err_errno(err, "cannot rename '%s' to '%s'", part, path);
    else if (sync_folder(path) < 0)
        rc = err_errno(err, "cannot sync the folder of '%s'", path);
    else
        rc = 0;
    if (rc < 0)
        unlink(part);
    return rc;
}

/* ---- reading ---- */

struct safetensors {
    struct file_map map;  /* owned: the file that it was read from */
    const uint8_t *bytes; /* borrowed */
    const uint8_t *data;  /* where the arrays begin */
    uint64_t ndata;
    json_t *root;               /* owned */
    struct scratches converted; /* owned: arrays that are not as they lie in the file */
};

/* type, shape and offsets of one array; validated */
struct place {
    const char *dtype;
    json_t *shape;
    uint64_t begin, end;
};

static int place_get(const struct safetensors *f, const char *name, json_t *row,
                     struct place *out, struct ddp_err *err)
{
    json_int_t begin, end;
    if (json_unpack(row, "{s:s, s:o, s:[I, I]}", "dtype", &out->dtype, "shape",
                    &out->shape, "data_offsets", &begin, &end) < 0 ||
        !json_is_array(out->shape) || begin < 0 || end < begin)
        return err_set(err, "array '%s' has no sound dtype, shape and data_offsets",
                       name);
    out->begin = (uint64_t)begin;
    out->end = (uint64_t)end;
    if (out->end > f->ndata)
        return err_set(err,
                       "it is cut short: array '%s' ends at byte %llu of the data, "
                       "which has %llu",
                       name, (unsigned long long)out->end, (unsigned long long)f->ndata);
    return 0;
}

/* Files of other programs have no checksums. */
static int check_array(const struct safetensors *f, const char *name, json_t *row,
                       struct ddp_err *err)
{
    struct place place;
    TRY(place_get(f, name, row, &place, err));
    const json_t *sum = json_object_get(row, "crc32");
    return !json_is_integer(sum) ||
                   (uLong)json_integer_value(sum) ==
                       crc32_z(0, f->data + place.begin, place.end - place.begin)
               ? 0
               : err_set(err, "array '%s' is damaged: its CRC-32 does not match", name);
}

static int check_header(struct safetensors *f, size_t size, struct ddp_err *err)
{
    uint64_t length;
    if (size < sizeof length)
        return err_set(err, "it is cut short: %zu bytes, not even a header", size);
    memcpy(&length, f->bytes, sizeof length);
    if (length > HEADER_MAX || (size > 8 && f->bytes[8] != '{'))
        return err_set(err, "it is not a safetensors file");
    if (length > size - sizeof length)
        return err_set(err, "it is cut short: a header of %llu bytes, %zu found",
                       (unsigned long long)length, size - sizeof length);
    json_error_t why;
    f->root = json_loadb((const char *)f->bytes + sizeof length, length,
                         JSON_REJECT_DUPLICATES, &why);
    if (!json_is_object(f->root))
        return err_set(err, "its header is not JSON: %s", why.text);
    f->data = f->bytes + sizeof length + length;
    f->ndata = size - sizeof length - length;
    const char *name;
    json_t *row;
    json_object_foreach (f->root, name, row) {
        if (strcmp(name, "__metadata__") != 0 && check_array(f, name, row, err) < 0)
            return -1;
    }
    return 0;
}

struct safetensors *safetensors_parse(const char *name, const uint8_t *bytes,
                                      size_t nbytes, struct ddp_err *err)
{
    struct safetensors *f = xcalloc(1, sizeof *f);
    f->bytes = bytes;
    if (check_header(f, nbytes, err) < 0) {
        err_prefix(err, "'%s'", name);
        safetensors_free(f);
        return NULL;
    }
    return f;
}

struct safetensors *safetensors_read(const char *path, struct ddp_err *err)
{
    struct file_map map;
    if (file_map_open(path, &map, err) < 0)
        return NULL;
    struct safetensors *f = file_map_load(path, &map, err) == 0
                                ? safetensors_parse(path, map.at, map.bytes, err)
                                : NULL;
    if (f)
        f->map = map;
    else
        file_map_close(&map);
    return f;
}

void safetensors_free(struct safetensors *f)
{
    if (!f)
        return;
    scratches_free(&f->converted);
    json_decref(f->root);
    file_map_close(&f->map);
    free(f);
}

const char *safetensors_metadata(const struct safetensors *f, const char *key)
{
    return json_string_value(
        json_object_get(json_object_get(f->root, "__metadata__"), key));
}

/* The types that can be read, and their conversion to floats. */
static const struct dtype {
    const char *name;
    size_t size;
    void (*widen)(float *out, const uint16_t *in, size_t n);
} dtypes[] = {{"F32", 4, NULL}, {"F16", 2, half_widen}, {"BF16", 2, bf16_widen}};

/* The array at `data` as floats: in place if possible. */
static const float *as_floats(struct safetensors *f, const struct dtype *type,
                              const uint8_t *data, size_t count)
{
    if (!type->widen && (uintptr_t)data % sizeof(float) == 0)
        return (const float *)(const void *)data;
    float *floats = scratch_in(&f->converted, count);
    OWNED uint16_t *halves = type->widen ? xcalloc(count, sizeof *halves) : NULL;
    memcpy(halves ? (void *)halves : floats, data, count * type->size);
    if (halves)
        type->widen(floats, halves, count);
    return floats;
}

int safetensors_find(struct safetensors *f, const char *name, struct array *out,
                     struct ddp_err *err)
{
    json_t *row = json_object_get(f->root, name);
    struct place place;
    if (!row)
        return 0;
    TRY(place_get(f, name, row, &place, err));
    const struct dtype *type = dtypes, *end = dtypes + ARRAY_LEN(dtypes);
    while (type < end && strcmp(type->name, place.dtype) != 0)
        type++;
    if (type == end)
        return err_set(err,
                       "the numbers of array '%s' are %.20s, and only F32, F16 and BF16 "
                       "are read: save it in one of these",
                       name, place.dtype);
    if (json_array_size(place.shape) > ARRAY_LEN(out->dims))
        return err_set(err, "array '%s' has %zu dimensions, more than %zu", name,
                       json_array_size(place.shape), ARRAY_LEN(out->dims));
    *out = (struct array){.name = name};
    uint64_t count = 1;
    for (size_t i = 0; i < json_array_size(place.shape); i++) {
        json_int_t dim = json_integer_value(json_array_get(place.shape, i));
        if (dim < 0 || dim > INT32_MAX || __builtin_mul_overflow(count, dim, &count))
            return err_set(err, "array '%s' has a bad dimension", name);
        out->dims[out->ndim++] = (int)dim;
    }
    if (count != (place.end - place.begin) / type->size ||
        (place.end - place.begin) % type->size != 0)
        return err_set(err, "array '%s': its shape and its length do not agree", name);
    out->data = as_floats(f, type, f->data + place.begin, count);
    return 1;
}
