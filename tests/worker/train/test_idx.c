#include "tests/support/suite.h"

#include "common/mem.h"
#include "worker/data/idx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

/* Two images of 2x3. */
#define HEAD     "\0\0\x08\x03\0\0\0\x02\0\0\0\x02\0\0\0\x03"
#define ELEMENTS "abcdefghijkl"

static const struct {
    const char *bytes;
    size_t n;
    int ndim;
    const char *error; /* NULL: it is read */
} cases[] = {
    {HEAD ELEMENTS, 28, 3, NULL},
    {HEAD ELEMENTS, 27, 3, "'f' is cut short: 12 bytes of elements expected, 11 found"},
    {HEAD ELEMENTS "!", 29, 3, "'f' is longer than the 12 elements its header announces"},
    {HEAD, 15, 3, "'f' is cut short: 16 bytes of header expected, 15 found"},
    {"", 0, 3, "'f' is cut short: 16 bytes of header expected, 0 found"},
    {HEAD ELEMENTS, 28, 1, "'f' has 3 dimensions, expected 1"},
    {"\0\0\x0d\x03\0\0\0\x01", 8, 3,
     "'f' is not an IDX file of unsigned bytes: it starts with 00 00 0d 03, expected 00 "
     "00 08 03"},
    {"label,1,2", 9, 1,
     "'f' is not an IDX file of unsigned bytes: it starts with 6c 61 62 65, expected 00 "
     "00 08 01"},
    {"\0\0\x08\x01\0\0\0\0", 8, 1, "'f' holds nothing: a dimension is 0"},
    {"\0\0\x08\x01\xff\xff\xff\xff", 8, 1,
     "'f' is cut short: 4294967295 bytes of elements expected, 0 found"},
    {"\0\0\x08\x03\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 16, 3,
     "'f': its dimensions are too large"},
};

LOOP_TEST(plain_files_are_read_or_refused, ARRAY_LEN(cases))
{
    struct idx idx;
    struct ddp_err err = {""};
    int rc = idx_parse("f", (const uint8_t *)cases[_i].bytes, cases[_i].n, cases[_i].ndim,
                       &idx, &err);
    ck_assert_str_eq(err.text, cases[_i].error ? cases[_i].error : "");
    ck_assert_int_eq(rc, cases[_i].error ? -1 : 0);
    if (rc == 0) {
        ck_assert_uint_eq(idx.dims[0], 2);
        ck_assert_uint_eq(idx.dims[2], 3);
        ck_assert_mem_eq(idx.data, ELEMENTS, 12);
    }
    idx_finish(&idx);
}

static size_t compress_gz(const void *from, size_t n, uint8_t *to, size_t room)
{
    z_stream z = {0};
    ck_assert_int_eq(deflateInit2(&z, 9, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY),
                     Z_OK);
    z.next_in = (Bytef *)(uintptr_t)from;
    z.avail_in = (uInt)n;
    z.next_out = to;
    z.avail_out = (uInt)room;
    ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
    size_t made = z.total_out;
    deflateEnd(&z);
    return made;
}

TEST(gz_is_read_like_plain)
{
    uint8_t gz[256];
    size_t n = compress_gz(HEAD ELEMENTS, 28, gz, sizeof gz);
    struct idx idx;
    struct ddp_err err;
    ck_ok(idx_parse("f", gz, n, 3, &idx, &err), err);
    ck_assert_mem_eq(idx.data, ELEMENTS, 12);
    idx_finish(&idx);
}

TEST(gz_cut_anywhere_is_refused)
{
    uint8_t gz[256];
    size_t n = compress_gz(HEAD ELEMENTS, 28, gz, sizeof gz);
    for (size_t cut = 0; cut < n; cut++) {
        struct idx idx;
        struct ddp_err err = {""};
        uint8_t *exact = xmemdup(gz, cut); /* a read past it is seen by the sanitizer */
        ck_assert_int_eq(idx_parse("f", exact, cut, 3, &idx, &err), -1);
        ck_assert_msg(strstr(err.text, "cut short") || strstr(err.text, "not an IDX"),
                      "cut at %zu: %s", cut, err.text);
        ck_assert_ptr_null(idx.data);
        free(exact);
    }
}

/* The rest of the stream is missing, but not looked at. */
TEST(a_wrong_gz_is_refused_by_its_header)
{
    static uint8_t bytes[1 << 16], gz[1 << 17];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(1 + i * i / 3);
    size_t n = compress_gz(bytes, sizeof bytes, gz, sizeof gz);
    struct idx idx;
    struct ddp_err err;
    ck_assert_int_eq(idx_parse("f", gz, n / 2, 3, &idx, &err), -1);
    ck_assert_str_eq(err.text, "'f' is not an IDX file of unsigned bytes: it starts with "
                               "01 01 02 04, expected 00 00 08 03");
}

TEST(gz_with_a_wrong_sum_is_refused)
{
    uint8_t gz[256];
    size_t n = compress_gz(HEAD ELEMENTS, 28, gz, sizeof gz);
    gz[n - 8] ^= 1; /* of the checksum */
    struct idx idx;
    struct ddp_err err;
    ck_assert_int_eq(idx_parse("f", gz, n, 3, &idx, &err), -1);
    ck_assert_str_eq(err.text, "'f': the gz stream is damaged (incorrect data check) "
                               "after 28 bytes");
}

TEST(a_small_gz_cannot_ask_for_all_memory)
{
    static const uint8_t head[] = {0, 0, 8, 1, 0xff, 0xff, 0xff, 0xff};
    uint8_t gz[256];
    size_t n = compress_gz(head, sizeof head, gz, sizeof gz);
    struct idx idx;
    struct ddp_err err;
    ck_assert_int_eq(idx_parse("f", gz, n, 1, &idx, &err), -1);
    ck_assert_ptr_nonnull(
        strstr(err.text, "4294967295 bytes of elements expected, 0 found"));
}

TEST(a_file_is_found_with_and_without_gz)
{
    char *dir = temp_dir(), *path = xasprintf("%s/a", dir),
         *gz = xasprintf("%s.gz", path);
    struct idx idx;
    struct ddp_err err;
    ck_assert_int_eq(idx_read(path, 3, &idx, &err), -1);
    char *expected =
        xasprintf("cannot open '%s' (or .gz): No such file or directory", path);
    ck_assert_str_eq(err.text, expected);
    free(expected);

    gzFile f = gzopen(gz, "wb");
    ck_assert_int_eq(gzwrite(f, HEAD ELEMENTS, 28), 28);
    gzclose(f);
    ck_ok(idx_read(path, 3, &idx, &err), err);
    ck_assert_uint_eq(idx.count, 12);
    idx_finish(&idx);

    ck_assert_int_eq(mkdir(path, 0700), 0);
    ck_assert_int_eq(idx_read(path, 3, &idx, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "is not a regular file"));
    ck_assert_int_eq(rmdir(path), 0);
    ck_assert_int_eq(mkfifo(path, 0600), 0); /* without a writer */
    ck_assert_int_eq(idx_read(path, 3, &idx, &err), -1);
    ck_assert_ptr_nonnull(strstr(err.text, "is not a regular file"));
    free(gz);
    free(path);
    free(dir);
}
