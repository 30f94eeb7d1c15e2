#include "tests/support/suite.h"

#include "common/file_map.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Pages behind the end of a file fail as those of a disk that is broken. */
TEST(what_cannot_be_read_is_an_error)
{
    struct ddp_err err;
    struct file_map map;
    char *dir = temp_dir();
    const long page = sysconf(_SC_PAGESIZE);
    ck_assert_int_eq(chdir(dir), 0);
    FILE *f = fopen("f", "w");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(ftruncate(fileno(f), 2 * page), 0);
    ck_ok(file_map_open("f", &map, &err), err);
    ck_ok(file_map_load("f", &map, &err), err);
    ck_assert_int_eq(ftruncate(fileno(f), page), 0);
    ck_assert_int_eq(file_map_load("f", &map, &err), -1);
    ck_assert_str_eq(err.text, "cannot read 'f': Input/output error");
    file_map_close(&map);
    ck_assert_int_eq(ftruncate(fileno(f), 0), 0);
    ck_ok(file_map_open("f", &map, &err), err);
    ck_ok(file_map_load("f", &map, &err), err);
    ck_assert_uint_eq(map.bytes, 0);
    file_map_close(&map);
    fclose(f);
    free(dir);
}
