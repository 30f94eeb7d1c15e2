/* worker/data/digits.c - the four IDX files of worker/data/digits/, embedded in the
 * program; source and licence are in its README.md
 *
 * The assembler copies the files as they are. DIGITS_DIR comes from meson.build.
 */
#include "worker/data/idx.h"

#include "common/mem.h"

#include <string.h>

#define CARRY(symbol, file)                                                      \
    __asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"" DIGITS_DIR "/" file \
            "\"\n" #symbol "_end:\n.popsection\n");                              \
    extern const uint8_t symbol[] __attribute__((visibility("hidden")));         \
    extern const uint8_t symbol##_end[] __attribute__((visibility("hidden")))

#define TRAIN_IMAGES "train-images-idx3-ubyte.gz"
#define TRAIN_LABELS "train-labels-idx1-ubyte.gz"
#define TEST_IMAGES  "t10k-images-idx3-ubyte.gz"
#define TEST_LABELS  "t10k-labels-idx1-ubyte.gz"

CARRY(digits_train_images, TRAIN_IMAGES);
CARRY(digits_train_labels, TRAIN_LABELS);
CARRY(digits_test_images, TEST_IMAGES);
CARRY(digits_test_labels, TEST_LABELS);

static const struct {
    const char *name;
    const uint8_t *bytes, *end;
} files[] = {
    {TRAIN_IMAGES, digits_train_images, digits_train_images_end},
    {TRAIN_LABELS, digits_train_labels, digits_train_labels_end},
    {TEST_IMAGES, digits_test_images, digits_test_images_end},
    {TEST_LABELS, digits_test_labels, digits_test_labels_end},
};

const uint8_t *digits_file(const char *name, size_t *nbytes)
{
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        if (strcmp(files[i].name, name) == 0) {
            *nbytes = (size_t)(files[i].end - files[i].bytes);
            return files[i].bytes;
        }
    }
    return NULL;
}
