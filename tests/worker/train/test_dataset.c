#include "tests/support/suite.h"

#include "common/mem.h"
#include "worker/data/dataset.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TEST(the_carried_digits_are_all_there)
{
    struct dataset d;
    struct ddp_err err;
    ck_ok(dataset_load("digits", NULL, 1, &d, &err), err);
    ck_assert_uint_eq(d.train.n, 1438);
    ck_assert_uint_eq(d.test.n, 359);
    ck_assert_int_eq(d.shape.H, 8);
    ck_assert_int_eq(d.shape.W, 8);
    /* The first image of the source: a zero whose first row is 0 0 5 13 9 1 0 0; the
     * first test image is the fifth: a four. */
    ck_assert_mem_eq(d.train.pixels, "\0\0\5\15\11\1\0\0", 8);
    ck_assert_uint_eq(d.train.labels[0], 0);
    ck_assert_uint_eq(d.test.labels[0], 4);
    dataset_finish(&d);
}

TEST(gathered_images_are_normalised)
{
    struct dataset d;
    struct ddp_err err;
    ck_ok(dataset_load("digits", NULL, 1, &d, &err), err);
    int n = (int)d.train.n;
    uint32_t *all = xcalloc(d.train.n, sizeof *all);
    for (int i = 0; i < n; i++)
        all[i] = (uint32_t)(n - 1 - i);
    struct batch_buf buf;
    batch_buf_init(&buf, &d, n);
    struct batch b = dataset_gather(&d, &d.train, NULL, all, n, &buf);
    double sum = 0, squares = 0;
    for (int i = 0; i < n * 64; i++) {
        sum += (double)b.x[i];
        squares += (double)b.x[i] * (double)b.x[i];
    }
    ck_assert_double_eq_tol(sum / (n * 64), 0, 1e-5);
    ck_assert_double_eq_tol(squares / (n * 64), 1, 1e-5);
    ck_assert_uint_eq(b.labels[n - 1], d.train.labels[0]);
    ck_assert(b.x[(n - 1) * 64 + 3] == d.as_float[0][13]);
    batch_buf_finish(&buf);
    dataset_finish(&d);
    free(all);
}

/* What PyTorch makes of pixels with div(255), sub_(mean), div_(std). */
static const struct {
    const char *text;
    int pixel;
    float is[3];
} normalised[] = {
    {"none", 51, {0x1.99999ap-3f, 0x1.99999ap-3f, 0x1.99999ap-3f}},
    {"0.1307/0.3081", 77, {0x1.1c99d2p-1f, 0x1.1c99d2p-1f, 0x1.1c99d2p-1f}},
    {"mnist", 1, {-0x1.a55c4p-2f, -0x1.a55c4p-2f, -0x1.a55c4p-2f}},
    {"cifar10", 0, {-0x1.fd4e26p+0f, -0x1.faf42p+0f, -0x1.b4f122p+0f}},
    {"cifar10", 128, {0x1.5e428p-5f, 0x1.4c675cp-4f, 0x1.b2304ap-3f}},
    {"0.4914,0.4822,0.4465/0.2470,0.2435,0.2616",
     255,
     {0x1.0790e6p+1f, 0x1.1030c8p+1f, 0x1.0ed362p+1f}},
    {"imagenet", 77, {-0x1.993d92p-1f, -0x1.6016fp-1f, -0x1.d97e72p-2f}},
};

LOOP_TEST(pixels_become_the_floats_of_pytorch, ARRAY_LEN(normalised))
{
    struct normalise n;
    struct ddp_err err;
    float table[NORMALISE_CHANNELS][256];
    ck_ok(normalise_parse(normalised[_i].text, &n, &err), err);
    ck_ok(normalise_spread(&n, 3, &err), err);
    normalise_table(&n, table);
    for (int c = 0; c < 3; c++)
        ck_assert(table[c][normalised[_i].pixel] == normalised[_i].is[c]);
}

/* Each pixel of the result is where the header says, and draws are spread evenly. */
TEST(images_are_moved_and_mirrored)
{
    struct dataset d;
    struct ddp_err err;
    ck_ok(dataset_load("digits", NULL, 1, &d, &err), err);
    struct augment how = {.pad = 2, .flip = true, .key = augment_key(9, 3)};
    uint32_t which[] = {700, 3, 700};
    int seen[5] = {0}, mirrored = 0, differ = 0;
    struct batch_buf buf;
    batch_buf_init(&buf, &d, 3);
    for (uint32_t i = 0; i < d.train.n; i++) {
        which[1] = i;
        struct batch b = dataset_gather(&d, &d.train, &how, which, 3, &buf);
        struct augment_move m = augment_draw(&how, i);
        ck_assert(abs(m.dy) <= 2 && abs(m.dx) <= 2);
        seen[m.dx + 2]++;
        mirrored += m.mirror;
        differ += m.dx != m.dy;
        for (int y = 0; y < 8; y++)
            for (int x = 0; x < 8; x++) {
                int row = y + m.dy, column = (m.mirror ? 7 - x : x) + m.dx;
                bool in = row >= 0 && row < 8 && column >= 0 && column < 8;
                int pixel =
                    in ? d.train.pixels[i * 64 + (uint32_t)(row * 8 + column)] : 0;
                ck_assert(b.x[64 + y * 8 + x] == d.as_float[0][pixel]);
            }
        ck_assert_mem_eq(b.x, b.x + 128, 64 * sizeof(float));
    }
    for (int i = 0; i < 5; i++) /* of 1438; 288 each */
        ck_assert(seen[i] > 220 && seen[i] < 360);
    ck_assert(mirrored > 600 && mirrored < 840);
    ck_assert(differ > 1000);
    batch_buf_finish(&buf);
    dataset_finish(&d);
}

/* The least-squares line through what was drawn is the line it was drawn from. */
TEST(the_known_line_can_be_found_again)
{
    struct dataset d;
    struct ddp_err err;
    ck_ok(dataset_load("synthetic", NULL, 1, &d, &err), err);
    double n = (double)d.train.n, x = 0, y = 0, xx = 0, xy = 0;
    for (size_t i = 0; i < d.train.n; i++) {
        double a = (double)d.train.inputs[i], t = (double)d.train.targets[i];
        x += a, y += t, xx += a * a, xy += a * t;
    }
    double slope = (n * xy - x * y) / (n * xx - x * x), offset = (y - slope * x) / n;
    ck_assert_double_eq_tol(slope, dataset_line.slope, 0.02);
    ck_assert_double_eq_tol(offset, dataset_line.offset, 0.02);
    dataset_finish(&d);
}

/* A folder of two 1x1 training images and one test image, spoilt in one way. */
static const struct {
    const char *file, *bytes;
    size_t n;
    const char *error; /* with %s for the folder; NULL: it loads */
} spoilt[] = {
    {NULL, NULL, 0, NULL},
    {"train-labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\x01\x07", 9,
     "'%s': 2 train images but 1 labels"},
    {"train-labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\x02\x07\x0a", 10, NULL},
    {"t10k-labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\x01\x0a", 9,
     "'%s/t10k-labels-idx1-ubyte': label 10 of image 0 is not between 0 and 9"},
    {"t10k-labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\x01", 8,
     "'%s/t10k-labels-idx1-ubyte' is cut short: 1 bytes of elements expected, 0 found"},
    {"t10k-images-idx3-ubyte", "\0\0\x08\x03\0\0\0\x01\0\0\0\x01\0\0\0\x02zz", 18,
     "'%s/t10k-images-idx3-ubyte': training images are 1x1x1, test images 1x1x2"},
    {"train-images-idx3-ubyte", "\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x01zz", 18,
     "'%s': all pixels of channel 0 of the training images are alike: give --normalize "
     "numbers, or 'none'"},
};

static void put(const char *dir, const char *file, const char *bytes, size_t n)
{
    char *path = xasprintf("%s/%s", dir, file);
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_eq(fwrite(bytes, 1, n, f), n);
    fclose(f);
    free(path);
}

LOOP_TEST(spoilt_folders_are_refused_by_name, ARRAY_LEN(spoilt))
{
    char *dir = temp_dir();
    put(dir, "train-images-idx3-ubyte", "\0\0\x08\x03\0\0\0\x02\0\0\0\x01\0\0\0\x01za",
        18);
    put(dir, "train-labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\x02\x07\x01", 10);
    put(dir, "t10k-images-idx3-ubyte", "\0\0\x08\x03\0\0\0\x01\0\0\0\x01\0\0\0\x01q", 17);
    put(dir, "t10k-labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\x01\x03", 9);
    if (spoilt[_i].file)
        put(dir, spoilt[_i].file, spoilt[_i].bytes, spoilt[_i].n);
    struct dataset d;
    struct ddp_err err = {""};
    int rc = dataset_load(dir, NULL, 1, &d, &err);
    char *expected = xasprintf(spoilt[_i].error ? spoilt[_i].error : "", dir);
    ck_assert_str_eq(err.text, expected);
    ck_assert_int_eq(rc, spoilt[_i].error ? -1 : 0);
    dataset_finish(&d);
    free(expected);
    free(dir);
}

/* A file of `bytes`, nearly all of which is a hole; false where there can be none. */
static bool put_hole(const char *dir, const char *file, const char *head, size_t n,
                     uint64_t bytes)
{
    put(dir, file, head, n);
    char *path = xasprintf("%s/%s", dir, file);
    bool done = truncate(path, (off_t)bytes) == 0;
    free(path);
    return done;
}

/* 2^20 images of 2^20 bytes: a terabyte. */
TEST(data_may_be_larger_than_memory)
{
    char *dir = temp_dir();
    struct dataset d;
    struct ddp_err err = {""};
    struct normalise half = {1, {0.5f}, {0.5f}};
    if (!put_hole(dir, "train-images-idx3-ubyte",
                  "\0\0\x08\x03\0\x10\0\0\0\0\4\0\0\0\4\0", 16,
                  16 + ((uint64_t)1 << 40)) ||
        !put_hole(dir, "train-labels-idx1-ubyte", "\0\0\x08\x01\0\x10\0\0", 8,
                  8 + (1 << 20)) ||
        !put_hole(dir, "t10k-images-idx3-ubyte", "\0\0\x08\x03\0\0\0\1\0\0\4\0\0\0\4\0",
                  16, 16 + (1 << 20)) ||
        !put_hole(dir, "data_batch_1.bin", "\1", 1, (uint64_t)3073 << 30)) {
        printf("skipped: no files of terabytes in '%s': %s; "
               "needs system a file system for them\n",
               dir, strerror(errno));
        free(dir);
        return;
    }
    char *records = xasprintf("%s/data_batch_1.bin", dir);
    put(dir, "t10k-labels-idx1-ubyte", "\0\0\x08\x01\0\0\0\1\3", 9);
    ck_assert_int_eq(dataset_load(dir, &half, 1, &d, &err), -1);
    ck_assert_msg(
        strstr(err.text, "/data_batch_1.bin' needs 3299.6 GB of memory, and ") &&
            strstr(err.text, " GB are left: IDX files that are not packed are"),
        "%s", err.text);
    dataset_finish(&d);
    unlink(records);
    ck_ok(dataset_load(dir, &half, 1, &d, &err), err);
    ck_assert_uint_eq(d.train.n, 1 << 20);
    struct batch_buf buf;
    batch_buf_init(&buf, &d, 2);
    uint32_t which[] = {(1 << 20) - 1, 12345};
    struct batch b = dataset_gather(&d, &d.train, NULL, which, 2, &buf);
    ck_assert(b.x[0] == -1.0f && b.x[(1 << 21) - 1] == -1.0f);
    batch_buf_finish(&buf);
    dataset_finish(&d);
    free(records);
    free(dir);
}

/* ---- .npy files ---- */

/* As numpy.save() writes it, by the header's first part. */
static void put_array(const char *dir, const char *file, const char *type,
                      const char *shape, const void *bytes, size_t n)
{
    char all[512];
    int length = snprintf(all + 10, sizeof all - 10,
                          "{'descr': '%s', 'fortran_order': %s, 'shape': (%s), }",
                          type + 1, *type == 'F' ? "True" : "False", shape);
    memcpy(all, "\x93NUMPY\1\0v\0", 10);
    memset(all + 10 + length, ' ', 0x76 - (size_t)length);
    memcpy(all + 128, bytes, n);
    put(dir, file, all, 128 + n);
}

static const struct {
    const char *file, *type, *shape; /* type: 'C' or 'F', and NumPy's */
    size_t bytes;
    const char *error;
} arrays[] = {
    {NULL, "", "", 0, NULL},
    {"train-images.npy", "C<f8", "3, 1, 2", 48,
     "'%s/train-images.npy' has elements of type '<f8', not uint8, float32 or (labels) "
     "little-endian integers: convert it with numpy's astype()"},
    {"train-images.npy", "C>f4", "3, 1, 2", 24,
     "'%s/train-images.npy' has elements of type '>f4', not uint8, float32 or (labels) "
     "little-endian integers: convert it with numpy's astype()"},
    {"train-images.npy", "F<f4", "3, 1, 2", 24,
     "'%s/train-images.npy' is in Fortran's order: save numpy.ascontiguousarray()"},
    {"train-images.npy", "C<f4", "3, 1, 2", 23,
     "'%s/train-images.npy' has 23 bytes of elements, not 6 of 4 bytes each"},
    {"train-images.npy", "C<f4", "2, 1, 2", 16, "'%s': 2 train images but 3 labels"},
    {"train-images.npy", "C<f4", "3, 2", 24,
     "'%s/train-images.npy' does not hold images of uint8 or float32, [N,H,W] or "
     "[N,C,H,W]"},
    {"train-images.npy", "C<i2", "3, 2, 1", 12,
     "'%s/train-images.npy' does not hold images of uint8 or float32, [N,H,W] or "
     "[N,C,H,W]"},
    {"train-images.npy", "C|u1", "3, 5, 1, 1", 15,
     "'%s/train-images.npy': images of 5 channels have to be float32"},
    {"train-images.npy", "C|u1", "3, 1, 2", 6,
     "'%s': training and test images are of different types"},
    {"test-images.npy", "C<f4", "1, 3, 1, 2", 24,
     "'%s/test-images.npy': training images are 1x1x2, test images 3x1x2"},
    {"train-labels.npy", "C<f4", "3,", 12,
     "'%s/train-labels.npy' does not hold one integer for each image"},
    {"train-labels.npy", "C<i2", "3,", 6,
     "'%s/train-labels.npy': label -1 of image 0 is not between 0 and 16777215"},
    {"train-labels.npy", "C|u1", "1, 1, 1, 3, 1", 3,
     "'%s/train-labels.npy' has to have 1 to 4 dimensions"},
    {"test-labels.npy", "C<i8", "1,", 8,
     "'%s/test-labels.npy': label -1 of image 0 is not between 0 and 700"},
    {"test-labels.npy", "C<u8", "1,", 8,
     "'%s/test-labels.npy': label 18446744073709551615 of image 0 is not between 0 and "
     "700"},
};

LOOP_TEST(arrays_of_numpy_are_read_or_refused, ARRAY_LEN(arrays))
{
    static const float images[] = {1, 2, 3, 4, 5, 6};
    static const int64_t labels[] = {700, 0, 300}, test_label = 300;
    static const uint8_t full[64] = {[0 ... 63] = 0xff};
    char *dir = temp_dir();
    put_array(dir, "train-images.npy", "C<f4", "3, 1, 2", images, sizeof images);
    put_array(dir, "train-labels.npy", "C<i8", "3,", labels, sizeof labels);
    put_array(dir, "test-images.npy", "C<f4", "1, 1, 1, 2", images + 2, 8);
    put_array(dir, "test-labels.npy", "C<i8", "1,", &test_label, 8);
    if (arrays[_i].file)
        put_array(dir, arrays[_i].file, arrays[_i].type, arrays[_i].shape, full,
                  arrays[_i].bytes);
    struct dataset d;
    struct ddp_err err = {""};
    int rc = dataset_load(dir, NULL, 1, &d, &err);
    char *expected = xasprintf(arrays[_i].error ? arrays[_i].error : "", dir);
    ck_assert_str_eq(err.text, expected);
    ck_assert_int_eq(rc, arrays[_i].error ? -1 : 0);
    if (rc == 0) {
        struct batch_buf buf;
        struct augment how = {.flip = true, .pad = 1, .key = 3};
        batch_buf_init(&buf, &d, 2);
        ck_assert_int_eq(d.shape.outputs, 701);
        struct batch b = dataset_gather(&d, &d.train, NULL, (uint32_t[]){2, 0}, 2, &buf);
        ck_assert(b.x[0] == 5 && b.x[1] == 6 && b.x[2] == 1 && b.x[3] == 2);
        ck_assert(b.labels[0] == 300 && b.labels[1] == 700);
        for (uint32_t i = 0; i < 3; i++) { /* moved, and 0 elsewhere */
            struct augment_move m = augment_draw(&how, i);
            b = dataset_gather(&d, &d.train, &how, &i, 1, &buf);
            for (int x = 0; x < 2; x++) {
                int at = (m.mirror ? 1 - x : x) + m.dx;
                ck_assert(
                    b.x[x] ==
                    (m.dy == 0 && (at == 0 || at == 1) ? images[2 * (int)i + at] : 0));
            }
        }
        batch_buf_finish(&buf);
        dataset_finish(&d);
        struct normalise half = {1, {0.5f}, {0.5f}};
        ck_assert_int_eq(dataset_load(dir, &half, 1, &d, &err), -1);
        ck_assert_ptr_nonnull(strstr(err.text, "are used as they are"));
    }
    free(expected);
    free(dir);
}

/* ---- CIFAR's records ---- */

/* A file of n records: labels that count up from `first`, pixels that tell where they
 * are. */
static void write_records(const char *path, int n, int labels, int first)
{
    FILE *f = fopen(path, "wb");
    ck_assert_ptr_nonnull(f);
    for (int i = 0; i < n; i++) {
        for (int l = 0; l < labels; l++)
            fputc(l + 1 < labels ? 19 : first + i, f);
        for (int p = 0; p < 3072; p++)
            fputc((first + i + p / 1024 * 10 + p % 7) & 0xff, f);
    }
    fclose(f);
}

static void in_an_empty_folder(void)
{
    char folder[] = "/tmp/ddp-cifar-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(chdir(folder), 0);
}

static void clear_folder(void)
{
    char here[64];
    DIR *dir = opendir(".");
    ck_assert_ptr_nonnull(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;)
        unlink(e->d_name); /* not "." and "..", which are folders */
    closedir(dir);
    ck_assert_ptr_nonnull(getcwd(here, sizeof here));
    ck_assert_int_eq(chdir("/"), 0);
    ck_assert_int_eq(rmdir(here), 0);
}

FIXTURE(in_an_empty_folder, clear_folder)

/* Of CIFAR-10's five files, n images each. */
static void write_batches(int n, int first)
{
    char name[] = "data_batch_1.bin";
    for (int i = 0; i < 5; i++, name[11]++)
        write_records(name, n, 1, first + i * n);
}

TEST(cifars_records_are_read)
{
    struct dataset d;
    struct ddp_err err;
    write_batches(1, 0);
    write_records("test_batch.bin", 4, 1, 2);
    ck_ok(dataset_load(".", NULL, 1, &d, &err), err);
    ck_assert(d.task == TASK_CLASSIFY && d.shape.C == 3 && d.shape.H == 32);
    ck_assert_int_eq(d.shape.outputs, 10);
    ck_assert_uint_eq(d.train.n, 5);
    ck_assert_uint_eq(d.test.n, 4);
    static const uint32_t labels[] = {0, 1, 2, 3, 4};
    ck_assert_mem_eq(d.train.labels, labels, sizeof labels);
    ck_assert_uint_eq(d.train.pixels[4 * 3072 + 1024 + 3], (4 + 10 + 1027 % 7));
    double sum = 0;
    uint32_t which[] = {0, 1, 2, 3, 4};
    struct batch_buf buf;
    batch_buf_init(&buf, &d, 5);
    struct batch b = dataset_gather(&d, &d.train, NULL, which, 5, &buf);
    for (int i = 0; i < 5 * 3072; i++)
        sum += (double)b.x[i];
    ck_assert_double_eq_tol(sum / (5 * 3072), 0, 1e-5);
    batch_buf_finish(&buf);
    dataset_finish(&d);
}

/* And one number for all channels is spread over them. */
TEST(cifar_100_has_fine_labels)
{
    struct normalise one = {1, {0.5f}, {0.25f}}, two = {2, {0}, {1, 1}};
    struct dataset d;
    struct ddp_err err;
    write_records("train.bin", 2, 2, 98);
    write_records("test.bin", 1, 2, 50);
    ck_ok(dataset_load(".", &one, 1, &d, &err), err);
    ck_assert_int_eq(d.shape.outputs, 100);
    ck_assert_uint_eq(d.train.labels[1], 99);
    ck_assert_uint_eq(d.test.labels[0], 50);
    ck_assert(d.as_float[2][255] == 2 && d.normal.std[1] == 0.25f);
    dataset_finish(&d);
    ck_assert_int_eq(dataset_load(".", &two, 1, &d, &err), -1);
    ck_assert_str_eq(err.text,
                     "--normalize has numbers for 2 channels, the images have 3");
}

TEST(spoilt_records_are_refused)
{
    struct dataset d;
    struct ddp_err err;
    write_records("data_batch_1.bin", 2, 1, 9);
    ck_assert_int_eq(dataset_load(".", NULL, 1, &d, &err), -1);
    ck_assert_str_eq(err.text,
                     "'./data_batch_1.bin': label 10 of record 1 is not between 0 and 9");
    write_batches(2, 0);
    ck_assert_int_eq(dataset_load(".", NULL, 1, &d, &err), -1);
    ck_assert_str_eq(err.text,
                     "cannot open './test_batch.bin': No such file or directory");
    put_file("test_batch.bin", "short");
    ck_assert_int_eq(dataset_load(".", NULL, 1, &d, &err), -1);
    ck_assert_str_eq(err.text,
                     "'./test_batch.bin' is not of CIFAR's records: 5 bytes are "
                     "no multiple of 3073");
    unlink("data_batch_4.bin");
    ck_assert_int_eq(dataset_load(".", NULL, 1, &d, &err), -1);
    ck_assert_str_eq(err.text,
                     "cannot open './data_batch_4.bin': No such file or directory");
}
