/* worker/data/images.h - folders of CIFAR's binary records, or of PNG and JPEG files
 *
 * CIFAR (https://www.cs.toronto.edu/~kriz/cifar.html, "binary version") has labels, then
 * 32x32 pixels of red, green and blue. CIFAR-10 is data_batch_1.bin to data_batch_5.bin
 * and test_batch.bin, one label a record; CIFAR-100 train.bin and test.bin, a coarse label,
 * which is passed over, and a fine one.
 *
 * FOLDER/train/CLASS/NAME.png (.jpg, .jpeg), and the same with test, or with val, as
 * torchvision's ImageFolder reads them: classes are numbered in the order of their
 * names' bytes, images are RGB, alpha is dropped. All have one size. Names that begin
 * with a dot, and folders in a class, are passed over.
 */
#ifndef WORKER_DATA_IMAGES_H
#define WORKER_DATA_IMAGES_H

#include "worker/data/dataset.h"

#include <stdbool.h>

/* Does the folder have this file? */
bool data_has(const char *folder, const char *file);

/* Fill the shape and both parts from the folder out->name; free them also after a
 * failure. Files are decoded by all threads of the engines (worker/kernels/pool.h). */
int cifar_load(struct dataset *out, struct ddp_err *err);
int folder_load(struct dataset *out, struct ddp_err *err);

/* In image_file.c. Decodes a file into the planes of red, green and blue, in the size
 * of `shape`; if its W is 0, finds out W and H instead, and `to` is not used. */
int image_file_read(const char *path, struct io_shape *shape, uint8_t *to,
                    struct ddp_err *err);

#endif
