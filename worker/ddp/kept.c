/* worker/ddp/kept.c - see kept.h */
#include "worker/ddp/kept.h"

#include "common/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/types.h>
#include <unistd.h>

/* Cell 0 has the host's number. In bytes; larger than any part. */
static const off_t CELL = (off_t)1 << 40;

static off_t cell_at(int local, int column, int half)
{
    return CELL * (1 + half + KEPT_HALVES * (column + (off_t)KEPT_COLUMNS * local));
}

static void give_back(int fd, off_t cell)
{
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, cell, CELL);
}

/* The first cell with pages from `from` on. -1: none. */
static off_t next_used(int fd, off_t from)
{
    off_t at = lseek(fd, from, SEEK_DATA);
    return at < 0 ? -1 : at / CELL * CELL;
}

/* The first rank draws it; the others wait for that. */
static int number_host(int fd, uint64_t *host)
{
    TRY(flock(fd, LOCK_EX));
    bool there = pread(fd, host, sizeof *host, 0) == sizeof *host && *host != 0;
    int rc = there || (getrandom(host, sizeof *host, 0) == sizeof *host &&
                       pwrite(fd, host, sizeof *host, 0) == sizeof *host)
                 ? 0
                 : -1;
    flock(fd, LOCK_UN);
    return rc;
}

static const char *kept_path(void)
{
    const char *path = getenv("DDPRUN_KEPT_MEMORY");
    return path && *path ? path : NULL;
}

bool kept_is_offered(void)
{
    return kept_path() != NULL;
}

int kept_open(uint64_t *host, struct ddp_err *err)
{
    const char *path = kept_path();
    if (!path)
        return err_set(err,
                       "a checkpoint in memory needs a job that may restart: 'ddprun "
                       "--max-restarts N', '--spares N' or '--nnodes MIN:MAX'");
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "cannot open DDPRUN_KEPT_MEMORY, '%s'", path);
    if (number_host(fd, host) < 0) {
        err_errno(err, "cannot use DDPRUN_KEPT_MEMORY, '%s'", path);
        close(fd);
        return -1;
    }
    return fd;
}

int kept_map(int fd, int local, int column, int half, size_t bytes, struct kept_cell *out,
             struct ddp_err *err)
{
    off_t at = cell_at(local, column, half), n = KEPT_HEAD + (off_t)bytes;
    *out = (struct kept_cell){NULL, bytes};
    give_back(fd, at); /* a part of the previous attempt */
    int why = posix_fallocate(fd, at, n);
    void *map = why == 0
                    ? mmap(NULL, (size_t)n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, at)
                    : MAP_FAILED;
    if (map == MAP_FAILED) {
        errno = why ? why : errno;
        return err_errno(err, "no %.1f MiB of memory for a rank's state",
                         (double)n / (1 << 20));
    }
    out->at = map;
    return 0;
}

void kept_unmap(struct kept_cell *c)
{
    if (c->at)
        munmap(c->at, KEPT_HEAD + c->bytes);
    c->at = NULL;
}

void kept_set_whole(const struct kept_cell *c, bool whole)
{
    atomic_store((_Atomic uint64_t *)(void *)c->at, whole);
}

bool kept_next(int fd, uint64_t *at, void *head, size_t n, int *half)
{
    off_t from = (off_t)*at / CELL * CELL + CELL;
    uint64_t whole;
    for (; (from = next_used(fd, from)) >= 0; from += CELL) {
        if (pread(fd, &whole, sizeof whole, from) == sizeof whole && whole == 1 &&
            pread(fd, head, n, from + KEPT_HEAD) == (ssize_t)n) {
            *at = (uint64_t)from + KEPT_HEAD;
            *half = (int)((from / CELL - 1) % KEPT_HALVES);
            return true;
        }
    }
    return false;
}

bool kept_read(int fd, uint64_t at, void *out, size_t bytes)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (char *)out + done, bytes - done, (off_t)(at + done));
        if (n <= 0 && !(n < 0 && errno == EINTR))
            return false;
        done += n > 0 ? (size_t)n : 0;
    }
    return true;
}

void kept_trim(int fd, int local, int nlocal, int columns)
{
    for (off_t at = CELL; (at = next_used(fd, at)) >= 0; at += CELL) {
        off_t i = at / CELL - 1, owner = i / KEPT_HALVES / KEPT_COLUMNS;
        if (owner % nlocal == local &&
            (owner != local || i / KEPT_HALVES % KEPT_COLUMNS >= columns))
            give_back(fd, at);
    }
}
