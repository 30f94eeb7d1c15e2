/* worker/data/image_file.c - PNG by libpng, JPEG by libjpeg; see images.h
 *
 * A build without one of them says so. A JPEG that is damaged only in part would be
 * decoded with a warning: that is an error here.
 */
#include "worker/data/images.h"

#include "common/err.h"
#include "common/file_map.h"
#include "common/mem.h"
#include "common/scoped.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#if HAVE_PNG || HAVE_JPEG

/* Takes over the size, or compares with it. */
static int take_size(const char *path, size_t W, size_t H, struct io_shape *shape,
                     struct ddp_err *err)
{
    if (shape->W == 0) {
        shape->W = (int)W;
        shape->H = (int)H;
    }
    return W == (size_t)shape->W && H == (size_t)shape->H
               ? 0
               : err_set(err, "'%s' is %zux%zu, the first image %dx%d: make all one size",
                         path, W, H, shape->W, shape->H);
}

/* n pixels into planes. */
static void part_colours(const uint8_t *from, size_t n, size_t plane, uint8_t *to)
{
    for (size_t i = 0; i < n; i++)
        for (size_t c = 0; c < 3; c++)
            to[c * plane + i] = *from++;
}

#endif

#if HAVE_PNG
#include <png.h>

struct png_reading {
    jmp_buf back;
    char text[100]; /* why it failed */
    const uint8_t *at;
    size_t left;
};

static void on_png_error(png_structp png, png_const_charp text)
{
    struct png_reading *r = png_get_error_ptr(png);
    snprintf(r->text, sizeof r->text, "%s", text);
    longjmp(r->back, 1);
}

static void on_png_warning(png_structp png, png_const_charp text) {}

static void take_bytes(png_structp png, png_bytep to, size_t n)
{
    struct png_reading *r = png_get_io_ptr(png);
    if (n > r->left)
        png_error(png, "it is cut short");
    memcpy(to, r->at, n);
    r->at += n;
    r->left -= n;
}

static int take_png(png_structp png, png_infop info, const char *path,
                    struct io_shape *shape, uint8_t *to, struct ddp_err *err)
{
    /* Like PIL: no gamma correction, alpha is dropped, 16 bits become 8. */
    png_read_png(png, info,
                 PNG_TRANSFORM_EXPAND | PNG_TRANSFORM_GRAY_TO_RGB |
                     PNG_TRANSFORM_STRIP_ALPHA | PNG_TRANSFORM_STRIP_16,
                 NULL);
    size_t W = png_get_image_width(png, info), H = png_get_image_height(png, info);
    bool sizing = shape->W == 0;
    TRY(take_size(path, W, H, shape, err));
    for (size_t y = 0; y < H && !sizing; y++)
        part_colours(png_get_rows(png, info)[y], W, W * H, to + y * W);
    return 0;
}

static int read_png(const char *path, const struct file_map *map, struct io_shape *shape,
                    uint8_t *to, struct ddp_err *err)
{
    struct png_reading r = {.at = map->at, .left = map->bytes};
    png_structp png =
        png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, on_png_error, on_png_warning);
    png_infop info = png_create_info_struct(png);
    volatile int rc = -1;
    if (!info) {
        rc = err_set(err, "'%s': no memory to read it", path);
    } else if (setjmp(r.back) == 0) {
        png_set_read_fn(png, &r, take_bytes);
        rc = take_png(png, info, path, shape, to, err);
    } else {
        rc = err_set(err, "'%s' is damaged: %s", path, r.text);
    }
    png_destroy_read_struct(&png, &info, NULL);
    return rc;
}
#else
#define read_png NULL
#endif

#if HAVE_JPEG
#include <jpeglib.h>

struct jpeg_failure {
    struct jpeg_error_mgr as; /* first */
    jmp_buf back;
    char text[JMSG_LENGTH_MAX];
};

static void on_error(j_common_ptr jpeg)
{
    struct jpeg_failure *f = (void *)jpeg->err;
    jpeg->err->format_message(jpeg, f->text);
    longjmp(f->back, 1);
}

static void on_message(j_common_ptr jpeg, int level)
{
    if (level < 0) /* a warning */
        on_error(jpeg);
}

static int read_rows(struct jpeg_decompress_struct *jpeg, const char *path,
                     struct io_shape *shape, uint8_t *to, struct ddp_err *err)
{
    bool sizing = shape->W == 0;
    TRY(take_size(path, jpeg->image_width, jpeg->image_height, shape, err));
    jpeg->out_color_space = JCS_RGB;
    if (sizing)
        return 0;
    size_t W = jpeg->image_width, plane = W * jpeg->image_height;
    jpeg_start_decompress(jpeg);
    JSAMPARRAY row = jpeg->mem->alloc_sarray((j_common_ptr)jpeg, JPOOL_IMAGE,
                                             3 * jpeg->image_width, 1);
    for (size_t y = 0; y < jpeg->image_height; y++) {
        jpeg_read_scanlines(jpeg, row, 1);
        part_colours(*row, W, plane, to + y * W);
    }
    jpeg_finish_decompress(jpeg);
    return 0;
}

static int read_jpeg(const char *path, const struct file_map *map, struct io_shape *shape,
                     uint8_t *to, struct ddp_err *err)
{
    struct jpeg_decompress_struct jpeg;
    struct jpeg_failure failure;
    volatile int rc = -1;
    jpeg.err = jpeg_std_error(&failure.as);
    failure.as.error_exit = on_error;
    failure.as.emit_message = on_message;
    jpeg_create_decompress(&jpeg);
    if (setjmp(failure.back) == 0) {
        jpeg_mem_src(&jpeg, map->at, map->bytes);
        jpeg_read_header(&jpeg, TRUE);
        rc = read_rows(&jpeg, path, shape, to, err);
    } else {
        rc = err_set(err, "'%s' is damaged: %s", path, failure.text);
    }
    jpeg_destroy_decompress(&jpeg);
    return rc;
}
#else
#define read_jpeg NULL
#endif

static const struct format {
    const char *magic, *library;
    int (*read)(const char *path, const struct file_map *map, struct io_shape *shape,
                uint8_t *to, struct ddp_err *err);
} formats[] = {{"\x89PNG\r\n\x1a\n", "libpng", read_png},
               {"\xff\xd8", "libjpeg", read_jpeg}};

int image_file_read(const char *path, struct io_shape *shape, uint8_t *to,
                    struct ddp_err *err)
{
    SCOPED(file_map_close) struct file_map map = {0};
    TRY(file_map_open(path, &map, err));
    const struct format *f = formats, *end = formats + ARRAY_LEN(formats);
    while (f < end && (map.bytes < strlen(f->magic) ||
                       memcmp(map.at, f->magic, strlen(f->magic)) != 0))
        f++;
    if (f == end)
        return err_set(err, "'%s' is neither PNG nor JPEG", path);
    return f->read ? f->read(path, &map, shape, to, err)
                   : err_set(err, "'%s': this ddp-train was built without %s", path,
                             f->library);
}
