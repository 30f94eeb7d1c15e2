#include "tests/support/suite.h"

#include "common/mem.h"
#include "worker/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const spoilt_headers[] = {
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}",
    "{\"a\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,4]}}",
    "{\"a\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[0,4]}}",
    "{\"a\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,4]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,8]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1],\"data_offsets\":[0,4]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[1,4]}}",
    "{\"a\":{\"dtype\":\"F32\"}}",
    "{\"a\":7}",
    "{\"a\":",
    "[]",
};

/* A file of this header, padded with spaces, and these four bytes. */
static struct safetensors *read_small(const char *header, int spaces, const char *data,
                                      struct ddp_err *err)
{
    char *dir = temp_dir(), *path = xasprintf("%s/f", dir);
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    uint64_t length = strlen(header) + (size_t)spaces;
    fwrite(&length, sizeof length, 1, f);
    fprintf(f, "%s%*s", header, spaces, "");
    fwrite(data, 4, 1, f);
    fclose(f);
    struct safetensors *s = safetensors_read(path, err);
    free(path);
    free(dir);
    return s;
}

LOOP_TEST(spoilt_headers_are_refused, ARRAY_LEN(spoilt_headers))
{
    struct ddp_err err = {""};
    struct array a;
    struct safetensors *s = read_small(spoilt_headers[_i], 0, "\0\0\x80\x3f", &err);
    if (s)
        ck_assert_int_eq(safetensors_find(s, "a", &a, &err), -1);
    ck_assert_str_ne(err.text, "");
    if (strstr(spoilt_headers[_i], "F64"))
        ck_assert_str_eq(err.text, "the numbers of array 'a' are F64, and only F32, F16 "
                                   "and BF16 are read: save it in one of these");
    safetensors_free(s);
}

static const struct {
    const char *dtype, *data;
    int n;
    float numbers[2];
} foreign[] = {
    {"F32", "\x00\x00\xc0\xbf", 1, {-1.5f}},
    {"F16", "\x00\x3e\x01\x80", 2, {1.5f, -0x1p-24f}},
    {"BF16", "\xc0\x3f\x80\xc2", 2, {1.5f, -64}},
};

/* What other programs save: 16 bits, and headers that end anywhere. */
LOOP_TEST(arrays_of_other_types_are_read_as_floats, ARRAY_LEN(foreign))
{
    for (int spaces = 0; spaces < 8; spaces++) {
        struct ddp_err err = {""};
        struct array a;
        char *header =
            xasprintf("{\"a\":{\"dtype\":\"%s\",\"shape\":[%d],\"data_offsets\":[0,4]}}",
                      foreign[_i].dtype, foreign[_i].n);
        struct safetensors *s = read_small(header, spaces, foreign[_i].data, &err);
        ck_assert_msg(s != NULL, "%s", err.text);
        for (int twice = 0; twice < 2; twice++) {
            ck_assert_msg(safetensors_find(s, "a", &a, &err) == 1, "%s", err.text);
            ck_assert(a.ndim == 1 && a.dims[0] == foreign[_i].n);
            for (int i = 0; i < foreign[_i].n; i++)
                ck_assert(a.data[i] == foreign[_i].numbers[i]);
        }
        safetensors_free(s);
        free(header);
    }
}

/* Another user may have made them, where others can. */
TEST(a_link_or_a_fifo_in_the_place_of_the_new_file_is_refused)
{
    struct ddp_err err = {""};
    struct strv none = {0};
    struct stat st;
    char *dir = temp_dir(), *path = xasprintf("%s/f", dir),
         *part = xasprintf("%s.part", path), *thesis = xasprintf("%s/thesis", dir);
    put_file(thesis, "my thesis");
    ck_assert_int_eq(symlink(thesis, part), 0);
    ck_assert_int_eq(safetensors_write(path, &none, NULL, 0, NULL, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "f.part': Too many levels of symbolic links"));
    ck_assert_int_eq(stat(thesis, &st), 0);
    ck_assert_int_eq(st.st_size, 9);
    unlink(part);
    ck_assert_int_eq(mkfifo(part, 0600), 0);
    ck_assert_int_eq(safetensors_write(path, &none, NULL, 0, NULL, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "f.part': No such device or address"));
    free(thesis);
    free(part);
    free(path);
    free(dir);
}
