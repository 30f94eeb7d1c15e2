/* worker/data/idx.c - see idx.h
 *
 * A file is mapped and then parsed in memory, so that embedded data, plain files and
 * gz files share one path. The elements of a plain file stay in place. Of a gz file
 * the header is inflated first, then the elements, directly into a block of the
 * announced size. Before it is allocated, that size is checked against the most that
 * the compressed bytes can inflate to, and against the memory available.
 */
#include "worker/data/idx.h"

#include "common/err.h"
#include "common/mem.h"
#include "worker/data/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#define ZLIB_CONST
#include <zlib.h>

/* So that opening a FIFO does not block. */
enum { READ_FLAGS = O_RDONLY | O_NONBLOCK | O_CLOEXEC };

/* Deflate's largest ratio. */
enum { MAX_RATIO = 1032 };

/* The source of the elements: plain bytes, or bytes to inflate. */
struct source {
    const uint8_t *bytes; /* borrowed */
    size_t nbytes;
    bool stays;     /* the bytes outlive the result */
    bool gz, ended; /* ended: including the checksum at the end */
    z_stream z;
    const char *why; /* zlib's error; NULL: none */
};

static int source_open(struct source *s, const uint8_t *bytes, size_t nbytes)
{
    *s = (struct source){.bytes = bytes, .nbytes = nbytes};
    s->gz = nbytes >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;
    return s->gz && inflateInit2(&s->z, 15 + 16) != Z_OK ? -1 : 0;
}

static void source_close(struct source *s)
{
    if (s->gz)
        inflateEnd(&s->z);
}

static size_t source_inflate(struct source *s, uint8_t *to, size_t n)
{
    enum { STEP = 1 << 30 }; /* zlib counts in unsigned int */
    size_t done = 0;
    while (done < n && !s->ended && !s->why) {
        size_t want = n - done < STEP ? n - done : STEP;
        size_t have = s->nbytes < STEP ? s->nbytes : STEP;
        s->z.next_in = s->bytes;
        s->z.avail_in = (uInt)have;
        s->z.next_out = to + done;
        s->z.avail_out = (uInt)want;
        int rc = inflate(&s->z, Z_NO_FLUSH);
        size_t used = have - s->z.avail_in, made = want - s->z.avail_out;
        s->bytes += used;
        s->nbytes -= used;
        done += made;
        if (rc == Z_STREAM_END)
            s->ended = true;
        else if (rc != Z_OK && rc != Z_BUF_ERROR)
            s->why = s->z.msg ? s->z.msg : "not deflate";
        else if (used + made == 0)
            break;
    }
    return done;
}

/* Reads up to `n` bytes; fewer at the end, or where the gz stream is damaged. */
static size_t source_take(struct source *s, uint8_t *to, size_t n)
{
    if (s->gz)
        return source_inflate(s, to, n);
    n = n < s->nbytes ? n : s->nbytes;
    memcpy(to, s->bytes, n);
    s->bytes += n;
    s->nbytes -= n;
    return n;
}

static int refuse_short(const char *name, const struct source *s, size_t found,
                        size_t expected, const char *what, struct ddp_err *err)
{
    if (s->why)
        return err_set(err, "'%s': the gz stream is damaged (%s) after %zu bytes of %s",
                       name, s->why, found, what);
    return err_set(err, "'%s' is cut short: %zu bytes of %s expected, %zu found", name,
                   expected, what, found);
}

static uint32_t be32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static int take_header(const char *name, struct source *s, int ndim, struct idx *out,
                       struct ddp_err *err)
{
    uint8_t head[4 + 4 * IDX_MAX_DIMS];
    size_t size = 4 + 4 * (size_t)ndim, got = source_take(s, head, size);
    if (got >= 4 && (head[0] | head[1]) == 0 && head[2] == 8 && head[3] != ndim)
        return err_set(err, "'%s' has %d dimensions, expected %d", name, head[3], ndim);
    if (got >= 4 && (head[0] || head[1] || head[2] != 8))
        return err_set(err,
                       "'%s' is not an IDX file of unsigned bytes: it starts with "
                       "%02x %02x %02x %02x, expected 00 00 08 %02x",
                       name, head[0], head[1], head[2], head[3], (unsigned)ndim);
    if (got < size)
        return refuse_short(name, s, got, size, "header", err);
    out->ndim = ndim;
    out->count = 1;
    for (int i = 0; i < ndim; i++) {
        out->dims[i] = be32(head + 4 + 4 * (size_t)i);
        if (__builtin_mul_overflow(out->count, (size_t)out->dims[i], &out->count))
            return err_set(err, "'%s': its dimensions are too large", name);
    }
    return out->count > 0 ? 0
                          : err_set(err, "'%s' holds nothing: a dimension is 0", name);
}

static int take_elements(const char *name, struct source *s, struct idx *out,
                         struct ddp_err *err)
{
    if (!s->gz && out->count > s->nbytes)
        return refuse_short(name, s, s->nbytes, out->count, "elements", err);
    if (s->gz && out->count / MAX_RATIO > s->nbytes + 64)
        return err_set(err,
                       "'%s' is cut short: %zu bytes of elements expected, more than its "
                       "%zu compressed bytes can hold",
                       name, out->count, s->nbytes);
    size_t got = out->count;
    if (s->stays && !s->gz) {
        out->data = (uint8_t *)(uintptr_t)s->bytes;
        s->bytes += got;
        s->nbytes -= got;
    } else {
        if (memory_fits(name, out->count, "unpacked files are read as they are needed",
                        err) < 0)
            return -1;
        out->data = malloc(out->count);
        if (!out->data)
            return err_set(err, "'%s': no memory for its %zu bytes", name, out->count);
        got = source_take(s, out->data, out->count);
    }
    if (got < out->count)
        return refuse_short(name, s, got, out->count, "elements", err);
    uint8_t more; /* reading it also makes zlib verify the checksum */
    if (source_take(s, &more, 1) == 1)
        return err_set(err, "'%s' is longer than the %zu elements its header announces",
                       name, out->count);
    if (s->gz && !s->ended)
        return s->why
                   ? refuse_short(name, s, got, out->count, "elements", err)
                   : err_set(err, "'%s' is cut short: its gz checksum is missing", name);
    return 0;
}

static int parse(const char *name, const uint8_t *bytes, size_t nbytes, bool stays,
                 int ndim, struct idx *out, struct ddp_err *err)
{
    struct source s;
    if (source_open(&s, bytes, nbytes) < 0)
        return err_set(err, "'%s': zlib has no memory", name);
    s.stays = stays;
    int rc = take_header(name, &s, ndim, out, err);
    if (rc == 0)
        rc = take_elements(name, &s, out, err);
    source_close(&s);
    return rc;
}

int idx_parse(const char *name, const uint8_t *bytes, size_t nbytes, int ndim,
              struct idx *out, struct ddp_err *err)
{
    *out = (struct idx){0};
    int rc = parse(name, bytes, nbytes, false, ndim, out, err);
    if (rc < 0)
        idx_finish(out);
    return rc;
}

static bool in_map(const struct idx *idx)
{
    const uint8_t *map = idx->map;
    return map && idx->data >= map && idx->data < map + idx->map_bytes;
}

/* `out` keeps the mapping if its elements are in it. */
static int parse_file(const char *name, int fd, size_t size, int ndim, struct idx *out,
                      struct ddp_err *err)
{
    if (size == 0) /* an empty file cannot be mapped */
        return idx_parse(name, (const uint8_t *)"", 0, ndim, out, err);
    void *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
        return err_errno(err, "cannot read '%s'", name);
    out->map = map;
    out->map_bytes = size;
    int rc = parse(name, map, size, true, ndim, out, err);
    if (rc < 0) {
        idx_finish(out);
    } else if (!in_map(out)) {
        munmap(map, size);
        out->map = NULL;
    }
    return rc;
}

int idx_read(const char *path, int ndim, struct idx *out, struct ddp_err *err)
{
    char *gz = xasprintf("%s.gz", path);
    const char *name = path;
    *out = (struct idx){0};
    int rc = -1, fd = open(path, READ_FLAGS);
    if (fd < 0 && errno == ENOENT) {
        fd = open(gz, READ_FLAGS);
        name = fd < 0 && errno == ENOENT ? path : gz;
    }
    struct stat st;
    if (fd < 0)
        err_errno(err, "cannot open '%s'%s", name, name == path ? " (or .gz)" : "");
    else if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        err_set(err, "'%s' is not a regular file", name);
    else
        rc = parse_file(name, fd, (size_t)st.st_size, ndim, out, err);
    if (fd >= 0)
        close(fd);
    free(gz);
    return rc;
}

void idx_finish(struct idx *idx)
{
    if (!in_map(idx))
        free(idx->data);
    if (idx->map)
        munmap(idx->map, idx->map_bytes);
    *idx = (struct idx){0};
}
