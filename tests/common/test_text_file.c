#include "tests/support/suite.h"

#include "common/mem.h"
#include "common/text_file.h"

#include <errno.h>
#include <glob.h>
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
    char *text = text_file_read("test", path, &err);
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
