/* worker/data/folder.h - folders of PNG and JPEG files, one for each class
 *
 * FOLDER/train/CLASS/NAME.png (.jpg, .jpeg), and the same with test, or with val, as
 * torchvision's ImageFolder reads them: classes are numbered in the order of their
 * names' bytes, images are RGB, alpha is dropped. All have one size. Names that begin
 * with a dot, and folders in a class, are passed over.
 */
#ifndef WORKER_DATA_FOLDER_H
#define WORKER_DATA_FOLDER_H

#include "worker/data/dataset.h"

/* Fills the shape and both parts from the folder out->name, by all threads of the
 * engines (worker/kernels/pool.h); free them also after a failure. */
int folder_load(struct dataset *out, struct ddp_err *err);

/* In image_file.c. Decodes a file into the planes of red, green and blue, in the size
 * of `shape`; if its W is 0, finds out W and H instead, and `to` is not used. */
int image_file_read(const char *path, struct io_shape *shape, uint8_t *to,
                    struct ddp_err *err);

#endif
