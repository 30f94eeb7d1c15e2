/* worker/data/idx.c - see idx.h
 *
 * A file is read whole and then taken apart in memory, so that embedded data, plain files
 * and gz files go the same way. The header is inflated first; the elements then go
 * straight into a block of the announced size, which is checked against what so many
 * compressed bytes can become at best before it is allocated.
 */
#include "worker/data/idx.h"

#include "common/err.h"
#include "common/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#define ZLIB_CONST
#include <zlib.h>

/* Not to wait for a writer where the name is that of a pipe. */
enum { READ_FLAGS = O_RDONLY | O_NONBLOCK | O_CLOEXEC };

/* Deflate makes at most 1032 bytes of one. */
enum { MAX_RATIO = 1032 };

/* The elements' source: bytes as they are, or bytes to inflate. */
struct source {
    const uint8_t *bytes; /* borrowed */
    size_t nbytes;
    bool gz, ended; /* ended: with the sum at the end checked */
    z_stream z;
    const char *why; /* what zlib did not like, NULL: nothing */
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

/* Up to `n` bytes; fewer at the end, or where the gz stream is damaged. */
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
    out->data = malloc(out->count);
    if (!out->data)
        return err_set(err, "'%s': no memory for its %zu bytes", name, out->count);
    size_t got = source_take(s, out->data, out->count);
    if (got < out->count)
        return refuse_short(name, s, got, out->count, "elements", err);
    uint8_t more; /* asking for it also makes zlib check the sum at the end */
    if (source_take(s, &more, 1) == 1)
        return err_set(err, "'%s' is longer than the %zu elements its header announces",
                       name, out->count);
    if (s->gz && !s->ended)
        return s->why
                   ? refuse_short(name, s, got, out->count, "elements", err)
                   : err_set(err, "'%s' is cut short: its gz checksum is missing", name);
    return 0;
}

int idx_parse(const char *name, const uint8_t *bytes, size_t nbytes, int ndim,
              struct idx *out, struct ddp_err *err)
{
    struct source s;
    *out = (struct idx){0};
    if (source_open(&s, bytes, nbytes) < 0)
        return err_set(err, "'%s': zlib has no memory", name);
    int rc = take_header(name, &s, ndim, out, err);
    if (rc == 0)
        rc = take_elements(name, &s, out, err);
    source_close(&s);
    if (rc < 0)
        idx_finish(out);
    return rc;
}

/* The whole of `fd`, which is a regular file of `size` bytes. */
static uint8_t *read_all(int fd, size_t size)
{
    uint8_t *bytes = malloc(size ? size : 1);
    for (size_t done = 0; bytes && done < size;) {
        ssize_t n = read(fd, bytes + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n < 0 ? errno : EIO;
            free(bytes);
            return NULL;
        }
        done += (size_t)n;
    }
    return bytes;
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
    uint8_t *bytes = NULL;
    if (fd < 0)
        err_errno(err, "cannot open '%s'%s", name, name == path ? " (or .gz)" : "");
    else if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        err_set(err, "'%s' is not a regular file", name);
    else if (!(bytes = read_all(fd, (size_t)st.st_size)))
        err_errno(err, "cannot read '%s'", name);
    else
        rc = idx_parse(name, bytes, (size_t)st.st_size, ndim, out, err);
    free(bytes);
    if (fd >= 0)
        close(fd);
    free(gz);
    return rc;
}

void idx_finish(struct idx *idx)
{
    free(idx->data);
    *idx = (struct idx){0};
}
