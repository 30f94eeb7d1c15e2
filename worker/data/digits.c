/* worker/data/digits.c - the four IDX files of worker/data/digits/, embedded in the
 * program; source and licence are in its README.md
 *
 * The assembler copies the files as they are. DIGITS_DIR comes from meson.build.
 */
#include "worker/data/idx.h"

#include <string.h>

#define FILES(F)                                         \
    F(digits_train_images, "train-images-idx3-ubyte.gz") \
    F(digits_train_labels, "train-labels-idx1-ubyte.gz") \
    F(digits_test_images, "t10k-images-idx3-ubyte.gz")   \
    F(digits_test_labels, "t10k-labels-idx1-ubyte.gz")
#define CARRY(symbol, file)                                                      \
    __asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"" DIGITS_DIR "/" file \
            "\"\n" #symbol "_end:\n.popsection\n");                              \
    extern const uint8_t symbol[] __attribute__((visibility("hidden")));         \
    extern const uint8_t symbol##_end[] __attribute__((visibility("hidden")));
#define ROW(symbol, file) {file, symbol, symbol##_end},

FILES(CARRY)
static const struct {
    const char *name;
    const uint8_t *bytes, *end;
} files[] = {FILES(ROW)};

int digits_read(const char *path, int ndim, struct idx *out, struct ddp_err *err)
{
    const char *name = strrchr(path, '/') + 1;
    size_t i = 0;
    while (strcmp(files[i].name, name) != 0)
        i++;
    return idx_parse(name, files[i].bytes, (size_t)(files[i].end - files[i].bytes), ndim,
                     out, err);
}
