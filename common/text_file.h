/* common/text_file.h - small text files: read, private, replaced */
#ifndef COMMON_TEXT_FILE_H
#define COMMON_TEXT_FILE_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

/* bytes; ms: without a byte from a pipe, whose writer may be late or never come */
enum { TEXT_FILE_MAX = 1 << 20, TEXT_FILE_SILENCE_MS = 10000 };

/* A file to be read, and how errors call it. */
struct text_source {
    const char *what, *path;
    int64_t silence_ms; /* of a pipe: an error */
};
/* Open for text_file_fill(): a FIFO would else be waited for. */
int text_file_open(const struct text_source *from, struct ddp_err *err);
/* Read to the end of the file, at most `size` bytes. Returns how many, or -1. */
ssize_t text_file_fill(const struct text_source *from, int fd, char *text, size_t size,
                       struct ddp_err *err);

/* The whole file, or what a pipe such as <(command) has, at most `max` bytes (a multiple
 * of 1 MiB), and '\0'; the caller frees. NULL with an error, which calls it the `what`.
 */
char *text_file_load(const char *what, const char *path, size_t max, int64_t silence_ms,
                     size_t *size, struct ddp_err *err);

/* text_file_load() of TEXT_FILE_MAX and TEXT_FILE_SILENCE_MS; without a zero byte. */
char *text_file_read(const char *what, const char *path, struct ddp_err *err);

/* Open for reading a regular file, no symbolic link, of this user, that others cannot
 * read. -1 with `err` and errno, which is EPERM if it is another kind of file. */
int text_file_open_private(const char *path, struct ddp_err *err);

/* Is it the same file, which was not written in between? */
static inline bool text_file_same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

/* Write a temporary file beside `path` and rename it: readers see the old file or all of
 * the new one. The umask applies to `mode`. 0, or -1 with errno; nothing is left then. */
int text_file_replace(const char *path, const char *text, size_t size, mode_t mode);

#endif
