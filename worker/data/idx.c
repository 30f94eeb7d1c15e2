/* worker/data/idx.c - see idx.h
 *
 * A file is mapped and then parsed in memory, so that embedded data, plain files and
 * gz files share one path. The elements of a plain file stay in place; a gz file is
 * inflated when its header is right, into a block that grows, so that no header is
 * trusted with its size.
 */
#include "worker/data/idx.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "worker/data/memory.h"

#include <endian.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define ZLIB_CONST
#include <zlib.h>

static uInt at_once(size_t n)
{
    return n < 1 << 30 ? (uInt)n : 1 << 30;
}

static int refuse_short(const char *name, size_t found, size_t expected, const char *what,
                        struct ddp_err *err)
{
    return err_set(err, "'%s' is cut short: %zu bytes of %s expected, %zu found", name,
                   expected, what, found);
}

static size_t idx_header(int ndim)
{
    return 4 + 4 * (size_t)ndim;
}

static int take_header(const char *name, const uint8_t *head, size_t got, int ndim,
                       struct idx *out, struct ddp_err *err)
{
    size_t size = idx_header(ndim);
    if (got >= 4 && (head[0] | head[1]) == 0 && head[2] == 8 && head[3] != ndim)
        return err_set(err, "'%s' has %d dimensions, expected %d", name, head[3], ndim);
    if (got >= 4 && (head[0] || head[1] || head[2] != 8))
        return err_set(err,
                       "'%s' is not an IDX file of unsigned bytes: it starts with "
                       "%02x %02x %02x %02x, expected 00 00 08 %02x",
                       name, head[0], head[1], head[2], head[3], (unsigned)ndim);
    if (got < size)
        return refuse_short(name, got, size, "header", err);
    out->ndim = ndim;
    out->kind = 'u';
    out->width = 1;
    out->count = 1;
    for (int i = 0; i < ndim; i++) {
        memcpy(&out->dims[i], head + 4 + 4 * (size_t)i, sizeof out->dims[i]);
        out->dims[i] = be32toh(out->dims[i]);
        if (__builtin_mul_overflow(out->count, (size_t)out->dims[i], &out->count))
            return err_set(err, "'%s': its dimensions are too large", name);
    }
    return out->count > 0 ? 0
                          : err_set(err, "'%s' holds nothing: a dimension is 0", name);
}

/* Inflates the header and, if it is right, all; *nbytes becomes its size. The caller
 * frees. NULL with `err`. */
static uint8_t *inflate_all(const char *name, const uint8_t *bytes, size_t *nbytes,
                            int ndim, struct ddp_err *err)
{
    size_t head = idx_header(ndim), room = head, made = 0, left = *nbytes;
    struct idx header;
    uint8_t *out = xcalloc(room, 1);
    z_stream z = {.next_in = bytes};
    int rc = inflateInit2(&z, 15 + 16);
    while (rc == Z_OK) {
        if (made == head && take_header(name, out, made, ndim, &header, err) < 0)
            break;
        if (made == room) {
            room *= 2;
            if (memory_fits(name, (double)room,
                            "unpacked files are read as they are needed", err) < 0)
                break;
            out = xrealloc(out, room, 1);
        }
        uInt in = z.avail_in = at_once(left), space = z.avail_out = at_once(room - made);
        z.next_out = out + made;
        rc = inflate(&z, Z_NO_FLUSH);
        left -= in - z.avail_in;
        made += space - z.avail_out;
    }
    *nbytes = made;
    if (rc == Z_BUF_ERROR)
        err_set(err, "'%s' is cut short: its gz stream ends after %zu bytes", name, made);
    else if (rc != Z_OK && rc != Z_STREAM_END)
        err_set(err, "'%s': the gz stream is damaged (%s) after %zu bytes", name,
                z.msg ? z.msg : zError(rc), made);
    inflateEnd(&z);
    if (rc == Z_STREAM_END)
        return out;
    free(out);
    return NULL;
}

/* The elements stay where they are. */
static int parse(const char *name, const uint8_t *bytes, size_t nbytes, int ndim,
                 struct idx *out, struct ddp_err *err)
{
    size_t head = idx_header(ndim), left = nbytes > head ? nbytes - head : 0;
    TRY(take_header(name, bytes, nbytes, ndim, out, err));
    if (left < out->count)
        return refuse_short(name, left, out->count, "elements", err);
    if (left > out->count)
        return err_set(err, "'%s' is longer than the %zu elements its header announces",
                       name, out->count);
    out->data = (uint8_t *)(uintptr_t)bytes + head;
    return 0;
}

static bool is_gz(const uint8_t *bytes, size_t nbytes)
{
    return nbytes >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
}

static int parse_gz(const char *name, const uint8_t *bytes, size_t nbytes, int ndim,
                    struct idx *out, struct ddp_err *err)
{
    uint8_t *block = inflate_all(name, bytes, &nbytes, ndim, err);
    int rc = block ? parse(name, block, nbytes, ndim, out, err) : -1;
    if (rc == 0)
        out->data = memmove(block, out->data, out->count);
    else
        free(block);
    return rc;
}

int idx_parse(const char *name, const uint8_t *bytes, size_t nbytes, int ndim,
              struct idx *out, struct ddp_err *err)
{
    *out = (struct idx){0};
    if (is_gz(bytes, nbytes))
        return parse_gz(name, bytes, nbytes, ndim, out, err);
    TRY(parse(name, bytes, nbytes, ndim, out, err));
    out->data = xmemdup(out->data, out->count);
    return 0;
}

int idx_read(const char *path, int ndim, struct idx *out, struct ddp_err *err)
{
    OWNED char *gz = xasprintf("%s.gz", path);
    struct file_map map;
    const char *name = access(path, F_OK) == 0 ? path : gz;
    *out = (struct idx){0};
    if (access(name, F_OK) < 0)
        return err_errno(err, "cannot open '%s' (or .gz)", path);
    TRY(file_map_open(name, &map, err));
    bool packed = is_gz(map.at, map.bytes);
    int rc = (packed ? parse_gz : parse)(name, map.at, map.bytes, ndim, out, err);
    if (packed)
        file_map_close(&map);
    else
        out->map = map;
    return rc;
}

void idx_finish(struct idx *idx)
{
    if (!idx->map.at)
        free(idx->data);
    file_map_close(&idx->map);
    *idx = (struct idx){0};
}
