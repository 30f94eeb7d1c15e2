/* common/file_map.c - see file_map.h */
#include "common/file_map.h"

#include "common/err.h"
#include "common/scoped.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int map(const char *path, int fd, struct file_map *out, struct ddp_err *err)
{
    struct stat st;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return err_set(err, "'%s' is not a regular file", path);
    size_t n = (size_t)st.st_size;
    static char nothing[1]; /* an empty file cannot be mapped */
    void *at = n == 0 ? nothing : mmap(NULL, n, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED)
        return err_errno(err, "cannot read '%s'", path);
    *out = (struct file_map){at, n};
    return 0;
}

int file_map_open(const char *path, struct file_map *out, struct ddp_err *err)
{
    SCOPED(close_fd) int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    *out = (struct file_map){0};
    if (fd < 0)
        return err_errno(err, "cannot open '%s'", path);
    return map(path, fd, out, err);
}

int file_map_load(const char *path, const struct file_map *map, struct ddp_err *err)
{
    enum { POPULATE_READ = 22 }; /* MADV_POPULATE_READ, which older headers lack */
    if (map->bytes == 0 ||
        madvise((void *)(uintptr_t)map->at, map->bytes, POPULATE_READ) == 0 ||
        errno == EINVAL)
        return 0;
    errno = errno == EFAULT ? EIO : errno; /* EFAULT: an access would be a SIGBUS */
    return err_errno(err, "cannot read '%s'", path);
}

void file_map_close(struct file_map *map)
{
    if (map->bytes > 0)
        munmap((void *)(uintptr_t)map->at, map->bytes);
    *map = (struct file_map){0};
}
