/* worker/data/npy.c - see idx.h */
#include "worker/data/idx.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* The value of a key of the header, up to its end. NULL: there is none. */
static const char *value_of(const char *header, const char *key)
{
    const char *at = strstr(header, key);
    at = at ? strchr(at + strlen(key), ':') : NULL;
    return at ? at + 1 + strspn(at + 1, " ") : NULL;
}

static int take_type(const char *name, const char *type, struct idx *out,
                     struct ddp_err *err)
{
    static const char *const known[] = {"|u1", "|i1", "|b1", "<u2", "<i2",
                                        "<u4", "<i4", "<u8", "<i8", "<f4"};
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (type && strlen(type) > 4 && strncmp(type + 1, known[i], 3) == 0 &&
            type[4] == type[0]) {
            out->kind = known[i][1];
            out->width = (unsigned)(known[i][2] - '0');
            return 0;
        }
    }
    return err_set(
        err,
        "'%s' has elements of type %.*s, not uint8, float32 or (labels) little-"
        "endian integers: convert it with numpy's astype()",
        name, type ? (int)strcspn(type, ",}") : 4, type ? type : "none");
}

/* "(3, 28, 28)" */
static int take_shape(const char *name, const char *shape, struct idx *out,
                      struct ddp_err *err)
{
    const char *at = shape && *shape == '(' ? shape + 1 : "";
    out->count = 1;
    for (char *end; out->ndim < IDX_MAX_DIMS && *at >= '0' && *at <= '9'; out->ndim++) {
        unsigned long long n = strtoull(at, &end, 10);
        if (n > UINT32_MAX || __builtin_mul_overflow(out->count, (size_t)n, &out->count))
            return err_set(err, "'%s': its dimensions are too large", name);
        out->dims[out->ndim] = (uint32_t)n;
        at = end + strspn(end, ", ");
    }
    if (out->ndim == 0 || *at != ')')
        return err_set(err, "'%s' has to have 1 to %d dimensions", name, IDX_MAX_DIMS);
    return out->count > 0 ? 0
                          : err_set(err, "'%s' holds nothing: a dimension is 0", name);
}

static int take_header(const char *name, const char *header, struct idx *out,
                       struct ddp_err *err)
{
    const char *order = value_of(header, "'fortran_order'");
    TRY(take_type(name, value_of(header, "'descr'"), out, err));
    TRY(take_shape(name, value_of(header, "'shape'"), out, err));
    if (!order)
        return err_set(err, "'%s' has no 'fortran_order' in its header", name);
    if (strncmp(order, "False", 5) == 0)
        return 0;
    return err_set(err, "'%s' is in Fortran's order: save numpy.ascontiguousarray()",
                   name);
}

int npy_parse(const char *name, const uint8_t *bytes, size_t nbytes, struct idx *out,
              struct ddp_err *err)
{
    *out = (struct idx){0};
    if (nbytes < 12 || memcmp(bytes, "\x93NUMPY", 6) != 0 || bytes[6] < 1 || bytes[6] > 3)
        return err_set(err, "'%s' is not a .npy file of version 1, 2 or 3", name);
    size_t head = bytes[6] == 1 ? 10 : 12, length = 0, size;
    for (size_t i = 8; i < head; i++)
        length |= (size_t)bytes[i] << 8 * (i - 8);
    if (length > nbytes - head)
        return err_set(err, "'%s' is cut short in its header", name);
    OWNED char *header = xstrndup((const char *)bytes + head, length);
    TRY(take_header(name, header, out, err));
    head += length;
    if (__builtin_mul_overflow(out->count, (size_t)out->width, &size) ||
        size != nbytes - head)
        return err_set(err, "'%s' has %zu bytes of elements, not %zu of %u bytes each",
                       name, nbytes - head, out->count, out->width);
    if (head % out->width != 0)
        return err_set(err, "'%s': its elements are not aligned", name);
    out->data = (uint8_t *)(uintptr_t)bytes + head;
    return 0;
}

int npy_read(const char *path, int ndim, struct idx *out, struct ddp_err *err)
{
    struct file_map map;
    *out = (struct idx){0};
    TRY(file_map_open(path, &map, err));
    int rc = npy_parse(path, map.at, map.bytes, out, err);
    out->map = map;
    return rc;
}

uint64_t npy_integer(const struct idx *from, size_t i)
{
    const uint8_t *at = from->data + i * from->width;
    uint64_t n = 0;
    for (unsigned k = 0; k < from->width; k++)
        n |= (uint64_t)at[k] << 8 * k;
    bool negative = from->kind == 'i' && n >> (8 * from->width - 1);
    return negative && from->width < 8 ? n | UINT64_MAX << 8 * from->width : n;
}
