/* common/output_path.h - check that a result can be written, before computing it */
#ifndef COMMON_OUTPUT_PATH_H
#define COMMON_OUTPUT_PATH_H

#include <stdbool.h>
#include <stdio.h>

enum output_path_use {
    OUTPUT_PATH_WRITTEN,  /* opened and written: a file, /dev/stdout, a pipe */
    OUTPUT_PATH_MADE,     /* the same, and its directories are created */
    OUTPUT_PATH_REPLACED, /* written to a temporary file and renamed: regular files only,
                             since root could replace a device by one */
    OUTPUT_PATH_FOLDER    /* files are created in it */
};

/* NULL, or why `path` cannot be used like this: "Is a directory". Unless it is MADE, a
 * new file needs an existing directory. */
const char *output_path_check(const char *path, enum output_path_use use);

/* The file to replace, malloc'ed: what a symbolic link at `path` names, whether it exists
 * or not, or `path`. NULL, and `*why`: too many links, or one of another user in a folder
 * where all may write, which the kernel would not follow either (protected_symlinks in
 * proc_sys_fs(5)). */
char *output_path_follow(const char *path, const char **why);

/* Create or open a file; `how`: O_APPEND, O_TRUNC. Does not wait for the reader of a
 * FIFO, but writing does. -1 with errno, which output_path_error() explains. */
int output_path_fd(const char *path, int how);
const char *output_path_error(int error);
/* The same for appending or for overwriting; NULL, and why not. */
FILE *output_path_open(const char *path, bool append, const char **why);

#endif
