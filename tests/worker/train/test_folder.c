#include "tests/support/suite.h"

#include "common/mem.h"
#include "worker/data/dataset.h"
#include "worker/kernels/kernels.h"
#include "worker/kernels/pool.h"

#include <stdio.h>
/* after stdio.h */
#include <jpeglib.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { W = 6, H = 5 };

/* A pixel of image i. */
static uint8_t pixel(int i, int c, int y, int x)
{
    return (uint8_t)(20 * i + 30 * c + 3 * y + 5 * x);
}

static void put_png(const char *path, int i, int wide, png_uint_32 format)
{
    png_image png = {.version = PNG_IMAGE_VERSION,
                     .width = (png_uint_32)wide,
                     .height = H,
                     .format = format};
    uint8_t bytes[4 * H * 2 * W] = {0}, *to = bytes;
    uint16_t words[ARRAY_LEN(bytes)]; /* with a gamma of 1 */
    for (int y = 0; y < H; y++)
        for (int x = 0; x < wide; x++)
            for (int c = 0; c < (int)PNG_IMAGE_PIXEL_CHANNELS(format); c++)
                *to++ = c == 3 ? (uint8_t)(x * 30) : pixel(i, c, y, x);
    for (size_t k = 0; k < ARRAY_LEN(bytes); k++)
        words[k] = (uint16_t)(bytes[k] << 8 | 0xf0);
    bool linear = format & PNG_FORMAT_FLAG_LINEAR;
    ck_assert(
        png_image_write_to_file(&png, path, 0, linear ? (void *)words : bytes, 0, NULL));
}

static void put_jpeg(const char *path, int i)
{
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr error;
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    jpeg.err = jpeg_std_error(&error);
    jpeg_create_compress(&jpeg);
    jpeg_stdio_dest(&jpeg, f);
    jpeg.image_width = W;
    jpeg.image_height = H;
    jpeg.input_components = 3;
    jpeg.in_color_space = JCS_RGB;
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 100, TRUE);
    jpeg_start_compress(&jpeg, TRUE);
    for (int y = 0; y < H; y++) {
        uint8_t row[3 * W], *rows = row;
        for (int x = 0; x < 3 * W; x++)
            row[x] = pixel(i, x % 3, y, x / 3);
        jpeg_write_scanlines(&jpeg, &rows, 1);
    }
    jpeg_finish_compress(&jpeg);
    jpeg_destroy_compress(&jpeg);
    fclose(f);
}

/* Classes "b", "a" and "B" with two images each, of which the other is black. */
static void fill_folder(const char *test)
{
    static const char *const classes[] = {"b", "a", "B"};
    for (int part = 0; part < 2; part++)
        for (int c = 0; c < 3; c++) {
            char folder[64], file[96];
            const char *name = part ? test : "train";
            snprintf(folder, sizeof folder, "%s", name);
            mkdir(folder, 0700);
            snprintf(folder, sizeof folder, "%s/%s", name, classes[c]);
            mkdir(folder, 0700);
            snprintf(file, sizeof file, "%s/2.png", folder);
            static const png_uint_32 formats[] = {PNG_FORMAT_RGBA, PNG_FORMAT_GRAY,
                                                  PNG_FORMAT_LINEAR_RGB};
            put_png(file, c, W, formats[c]);
            snprintf(file, sizeof file, "%s/10.JPEG", folder);
            put_jpeg(file, 3 + c);
            snprintf(file, sizeof file, "%s/notes.txt", folder);
            put_file(file, "no picture");
        }
}

static void in_an_empty_folder(void)
{
    char folder[] = "/tmp/ddp-folder-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
}

static void clear_folder(void)
{
    char *here = getcwd(NULL, 0), *command = xasprintf("rm -r '%s'", here);
    ck_assert_int_eq(strncmp(here, "/tmp/ddp-folder-", 16), 0);
    ck_assert_int_eq(system(command), 0);
    free(command);
    free(here);
}

FIXTURE(in_an_empty_folder, clear_folder)

/* Pixels of image i are those that were written, up to `off`. */
static void check_image(const struct samples *part, int at, int i, bool gray, int off)
{
    for (int c = 0; c < 3; c++)
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++) {
                int got = part->pixels[((at * 3 + c) * H + y) * W + x];
                int want = pixel(i, gray ? 0 : c, y, x);
                ck_assert_msg(abs(got - want) <= off,
                              "image %d, colour %d, %d,%d: %d, not %d", at, c, x, y, got,
                              want);
            }
}

LOOP_TEST(classes_are_in_the_order_of_their_names, 2)
{
    static const uint32_t labels[] = {0, 0, 1, 1, 2, 2};
    struct dataset d;
    struct ddp_err err;
    fill_folder(_i ? "val" : "test");
    mkdir("train/.cache", 0700);
    pool_set(_i ? 4 : 1);
    ck_ok(dataset_load(".", NULL, 1, &d, &err), err);
    pool_set(1);
    ck_assert(d.shape.C == 3 && d.shape.H == H && d.shape.W == W && d.shape.outputs == 3);
    ck_assert_uint_eq(d.train.n, 6);
    ck_assert_uint_eq(d.test.n, 6);
    ck_assert_mem_eq(d.train.labels, labels, sizeof labels);
    /* "10.JPEG" is before "2.png"; B, a, b */
    static const int jpegs[] = {5, 4, 3}, pngs[] = {2, 1, 0};
    for (int c = 0; c < 3; c++) {
        check_image(&d.test, 2 * c, jpegs[c], false,
                    24); /* colours have half the pixels */
        check_image(&d.test, 2 * c + 1, pngs[c], pngs[c] == 1, 0);
    }
    dataset_finish(&d);
}

/* Without the last bytes, or with other bits in one. */
static void damage(const char *path, size_t less, size_t at)
{
    uint8_t bytes[4096];
    FILE *f = fopen(path, "rb");
    size_t n = fread(bytes, 1, sizeof bytes, f);
    fclose(f);
    ck_assert(n > less && n > at);
    bytes[at] ^= at ? 0x55 : 0;
    f = fopen(path, "wb");
    fwrite(bytes, 1, n - less, f);
    fclose(f);
}

static void other_size(void)
{
    put_png("train/b/2.png", 0, 2 * W, PNG_FORMAT_RGB);
}

static void cut_png(void)
{
    damage("test/a/2.png", 30, 0);
}

static void spoilt_png(void)
{
    damage("test/a/2.png", 0, 50);
}

static void cut_jpeg(void)
{
    damage("train/b/10.JPEG", 12, 0);
}

static void no_picture(void)
{
    put_file("train/B/10.JPEG", "GIF89a");
}

static void empty_class(void)
{
    unlink("train/a/2.png");
    unlink("train/a/10.JPEG");
}

static void missing_class(void)
{
    rename("test/a", "test/c");
}

static void one_more_class(void)
{
    mkdir("test/c", 0700);
}

static void no_test(void)
{
    rename("test", "tests");
}

static void no_class(void)
{
    rename("train", "old");
    mkdir("train", 0700);
}

static const struct {
    void (*spoil)(void);
    const char *error;
} spoilt[] = {
    {other_size, "'./train/b/2.png' is 12x5, the first image 6x5: make all one size"},
    {cut_png, "'./test/a/2.png' is damaged: "},
    {spoilt_png, "'./test/a/2.png' is damaged: "},
    {cut_jpeg, "'./train/b/10.JPEG' is damaged: Premature end of JPEG file"},
    {no_picture, "'./train/B/10.JPEG' is neither PNG nor JPEG"},
    {empty_class, "the class './train/a' has no .png, .jpg or .jpeg file"},
    {missing_class, "cannot read './test/a': No such file or directory"},
    {one_more_class, "'./test' has 4 classes, training has 3"},
    {no_test, "'.' has no folder 'test' or 'val' beside 'train'"},
    {no_class, "'./train' has no folders of images, one for each class"},
};

LOOP_TEST(spoilt_folders_are_refused_in_a_line, ARRAY_LEN(spoilt))
{
    struct dataset d;
    struct ddp_err err;
    fill_folder("test");
    spoilt[_i].spoil();
    ck_assert_int_eq(dataset_load(".", NULL, 1, &d, &err), -1);
    ck_assert_msg(strncmp(err.text, spoilt[_i].error, strlen(spoilt[_i].error)) == 0,
                  "%s", err.text);
}
