/* common/digest.h - the SHA-256 of a file, as sha256sum(1) prints it
 *
 * libsodium does the work and is named in digest.c and secret.c only.
 */
#ifndef COMMON_DIGEST_H
#define COMMON_DIGEST_H

#include "include/ddprun/err.h"

#include <stddef.h>
#include <stdint.h>

enum { DIGEST_TEXT = 65 }; /* 64 digits in lower case, and the NUL */

/* Of the whole file; `*size` (may be NULL) gets its bytes. */
int digest_file(const char *path, char text[DIGEST_TEXT], int64_t *size,
                struct ddp_err *err);

/* Of bytes in memory. */
void digest_bytes(const void *bytes, size_t n, char text[DIGEST_TEXT]);

#endif
