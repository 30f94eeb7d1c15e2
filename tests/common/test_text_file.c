#include "tests/support/suite.h"

#include "common/mem.h"
#include "common/text_file.h"

#include <errno.h>
#include <glob.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct ddp_err err;

static size_t files_in(const char *folder)
{
    glob_t found;
    char *all = xasprintf("%s/*", folder);
    size_t n = glob(all, 0, NULL, &found) == 0 ? found.gl_pathc : 0;
    globfree(&found);
    free(all);
    return n;
}

TEST(a_file_is_replaced_or_left)
{
    char *folder = temp_dir(), *path = xasprintf("%s/file", folder);
    struct stat st;
    put_file(path, "old");
    ck_assert_int_eq(text_file_replace(path, "new\n", 4, 0600), 0);
    char *text = text_file_read("test file", path, &err);
    ck_assert_pstr_eq(text, "new\n");
    free(text);
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 07777, 0600);

    char *other = xasprintf("%s/folder", folder);
    ck_assert_int_eq(mkdir(other, 0700), 0);
    ck_assert_int_eq(text_file_replace(other, "", 0, 0600), -1);
    ck_assert_int_eq(errno, EISDIR);
    ck_assert_uint_eq(files_in(folder), 2); /* no temporary file */
    free(other);
    free(path);
    free(folder);
}

TEST(a_text_is_read_whole_or_refused)
{
    static const struct {
        size_t size;
        bool zero, is_read;
    } files[] = {{0, false, true},
                 {4096, false, true},
                 {4097, false, true},
                 {TEXT_FILE_MAX, false, true},
                 {TEXT_FILE_MAX + 1, false, false},
                 {10, true, false}};
    char *path = temp_file("text", "");
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        char *bytes = xcalloc(files[i].size + 1, 1);
        memset(bytes, 'x', files[i].size);
        bytes[files[i].size / 2] = files[i].zero ? '\0' : bytes[files[i].size / 2];
        ck_assert_int_eq(text_file_replace(path, bytes, files[i].size, 0600), 0);
        char *text = text_file_read("test file", path, &err);
        ck_assert_msg(!!text == files[i].is_read, "%zu bytes", files[i].size);
        if (text)
            ck_assert_str_eq(text, bytes);
        free(text);
        free(bytes);
    }
    ck_assert_ptr_nonnull(strstr(err.text, "has a zero byte"));
    ck_assert_ptr_null(text_file_read("test file", "/", &err));
    ck_assert_str_eq(err.text, "the test file '/' is a directory");
    free(path);
}

TEST(a_pipe_without_a_writer_is_not_waited_for)
{
    char *folder = temp_dir(), *path = xasprintf("%s/pipe", folder);
    size_t size;
    ck_assert_int_eq(mkfifo(path, 0600), 0);
    ck_assert_ptr_null(text_file_load("test file", path, 1 << 20, 100, &size, &err));
    ck_assert_ptr_nonnull(strstr(err.text, "pipe' in 0.1 s"));
    free(path);
    free(folder);
}

TEST(a_private_file_is_of_this_user_alone)
{
    char *path = temp_file("file", "a"), *link = xasprintf("%s.link", path);
    char byte = 0;
    ck_assert_int_eq(chmod(path, 0600), 0);
    int fd = text_file_open_private(path, &err);
    ck_assert_int_eq(read(fd, &byte, 1), 1);
    ck_assert_int_eq(byte, 'a');
    close(fd);
    ck_assert_int_eq(symlink(path, link), 0);
    ck_assert_int_eq(text_file_open_private(link, &err), -1);
    ck_assert_int_eq(errno, ELOOP);
    ck_assert_int_eq(chmod(path, 0640), 0);
    ck_assert_int_eq(text_file_open_private(path, &err), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(unlink(path), 0);
    ck_assert_int_eq(text_file_open_private(path, &err), -1);
    ck_assert_int_eq(errno, ENOENT);
    free(link);
    free(path);
}
