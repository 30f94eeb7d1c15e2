/* Files of tokens, and texts, whose tokens are their bytes. */
#include "tests/support/suite.h"

#include "common/mem.h"
#include "worker/data/dataset.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TEST(a_long_text_is_tested_with_a_thousand_samples)
{
    struct dataset d;
    struct ddp_err err;
    uint32_t last[2];
    char text[20002] = {[0 ... 19999] = 'a', [20000] = 'z'};
    char *path = temp_file("long.txt", text);
    ck_ok(tokens_load(path, 1, 256, &d, &err), err);
    ck_assert_uint_eq(d.train.n, 19000);
    ck_assert_uint_eq(d.test.n, 1000);
    tokens_gather(&d, &d.test, (uint32_t[]){999}, 1, last);
    ck_assert(last[0] == 'a' && last[1] == 'z');
    dataset_finish(&d);
    free(path);
}

static const struct {
    const char *file;
    size_t bytes;
    int context, vocabulary;
    const char *text; /* NULL: right */
} texts[] = {
    {"t.txt", 8, 4, 256, "'t.txt' has 8 tokens: of 4 each, that is not two samples"},
    {"t.txt", 9, 4, 256, NULL},
    {"t.bin", 18, 4, 1 << 16, NULL},
    {"t.bin", 19, 4, 1 << 16, "'t.bin' is cut short: it ends within a token of 2 bytes"},
    {"t.bin", 16, 4, 1 << 16, "'t.bin' has 8 tokens: of 4 each, that is not two samples"},
    {"t.txt", 0, 4, 256, "'t.txt' has 0 tokens: of 4 each, that is not two samples"},
    {".", 0, 4, 256, "'.' is not a regular file"},
    {"none", 0, 4, 256, "cannot open 'none': No such file or directory"},
    {"t.txt", 100, 4, 99,
     "'t.txt': there is a token 100, and the model has a vocabulary of 99: try vocab=101"},
    {"t.txt", 256, 4, 256,
     "'t.txt' is not a text: byte 255 is 0 (convert UTF-16 with iconv -t UTF-8; tokens are "
     "in files .bin and .npy)"},
};

static const struct {
    uint32_t magic;
    size_t wide; /* bytes of a token */
} headers[] = {{20240520, 2}, {20240801, 4}};

/* The header says how wide the tokens are and how many there are; a sound file has them
 * all. */
LOOP_TEST(a_file_of_tokens_that_broke_off_is_refused, ARRAY_LEN(headers))
{
    struct dataset d;
    struct ddp_err err;
    for (uint32_t more = 0; more < 2; more++) {
        const uint32_t header[256] = {headers[_i].magic, 1, 40 + more};
        FILE *f = fopen("t.bin", "wb");
        fwrite(header, sizeof header, 1, f);
        for (uint32_t token = 0; token < 40; token++) /* little-endian */
            fwrite(&token, headers[_i].wide, 1, f);
        fclose(f);
        ck_assert_int_eq(tokens_load("t.bin", 4, 256, &d, &err), more ? -1 : 0);
        if (more)
            break;
        struct batch_buf buf;
        batch_buf_init(&buf, &d, 1);
        struct batch b = dataset_gather(&d, &d.train, NULL, &(uint32_t){3}, 1, &buf);
        for (uint32_t i = 0; i < 5; i++)
            ck_assert_uint_eq(b.tokens[i], 12 + i);
        batch_buf_finish(&buf);
        dataset_finish(&d);
    }
    ck_assert_str_eq(err.text, "'t.bin' is cut short: 40 tokens, and its header says 41");
}

/* What masks a label elsewhere would be token 65,535 of a large vocabulary. */
TEST(a_negative_token_is_refused)
{
    static const char head[] = "{'descr': '<i2', 'fortran_order': False, 'shape': (10,)}";
    static const int16_t tokens[10] = {1, 2, 3, -1};
    struct dataset d;
    struct ddp_err err;
    FILE *f = fopen("t.npy", "wb");
    fprintf(f, "\x93NUMPY%c%c%c%c%-118s", 1, 0, 118, 0, head);
    fwrite(tokens, sizeof tokens, 1, f);
    fclose(f);
    ck_assert_int_eq(tokens_load("t.npy", 4, 1 << 17, &d, &err), -1);
    ck_assert_str_eq(err.text, "'t.npy': there is a negative token, and the first is 0");
}

/* Read as 16 bits each of them is two, and the second is 0, or 1 with a large vocabulary.
 */
TEST(tokens_of_32_bits_need_a_header)
{
    static const uint32_t small[] = {7, 0, 9, 50256, 300, 8, 1, 2, 3, 4},
                          large[] = {7, 70000, 128000, 3, 4, 5, 6, 7, 8, 9};
    static const uint16_t pairs[] = {7, 0, 7, 0, 7, 0, 7, 0, 7, 2}, bits[10] = {1, 0, 1};
    static const struct {
        const void *data;
        size_t bytes;
        int vocabulary;
        bool good;
    } files[] = {{small, sizeof small, 50257, false},
                 {large, sizeof large, 128256, false},
                 {pairs, sizeof pairs, 50257, true},
                 {bits, sizeof bits, 128256, true}};
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        struct dataset d;
        struct ddp_err err = {""};
        FILE *f = fopen("t.bin", "wb");
        fwrite(files[i].data, files[i].bytes, 1, f);
        fclose(f);
        if (files[i].good) {
            ck_ok(tokens_load("t.bin", 4, files[i].vocabulary, &d, &err), err);
            dataset_finish(&d);
            continue;
        }
        ck_assert_int_eq(tokens_load("t.bin", 4, files[i].vocabulary, &d, &err), -1);
        ck_assert_msg(
            strstr(err.text, "'t.bin' has no header and looks like tokens of 32"), "%s",
            err.text);
    }
}

LOOP_TEST(files_of_tokens_are_right_or_refused, ARRAY_LEN(texts))
{
    bool text = strcmp(texts[_i].file, "t.txt") == 0; /* which begins with 1, not 0 */
    struct dataset d;
    struct ddp_err err;
    if (strchr(texts[_i].file, '.') && texts[_i].file[1]) {
        FILE *f = fopen(texts[_i].file, "wb");
        for (size_t i = 0; i < texts[_i].bytes; i++)
            fputc((int)i + text, f);
        fclose(f);
    }
    int rc =
        tokens_load(texts[_i].file, texts[_i].context, texts[_i].vocabulary, &d, &err);
    if (texts[_i].text) {
        ck_assert_int_eq(rc, -1);
        ck_assert_str_eq(err.text, texts[_i].text);
        return;
    }
    ck_ok(rc, err);
    ck_assert_uint_eq(d.train.n, 1);
    ck_assert_uint_eq(d.test.n, 1);
    struct batch_buf buf;
    batch_buf_init(&buf, &d, 1);
    struct batch b = dataset_gather(&d, &d.test, NULL, &(uint32_t){0}, 1, &buf);
    uint32_t wide = (uint32_t)d.token_bytes;
    for (uint32_t i = 0; i < 5; i++) /* from the token that training has seen last */
        ck_assert_uint_eq(b.tokens[i],
                          wide == 1 ? 5 + i : (4 + i) * 2 + ((4 + i) * 2 + 1) * 256);
    batch_buf_finish(&buf);
    dataset_finish(&d);
}
