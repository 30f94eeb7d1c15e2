/* common/digest.c - see digest.h */
#include "common/digest.h"

#include "common/err.h"
#include "common/scoped.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <unistd.h>

int digest_file(const char *path, char text[DIGEST_TEXT], int64_t *size,
                struct ddp_err *err)
{
    unsigned char piece[64 << 10], sum[crypto_hash_sha256_BYTES];
    crypto_hash_sha256_state state;
    SCOPED(close_fd) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, "cannot open '%s'", path);
    crypto_hash_sha256_init(&state);
    int64_t total = 0;
    for (ssize_t n = 1; n != 0;) {
        n = read(fd, piece, sizeof piece);
        if (n < 0 && errno != EINTR)
            return err_errno(err, "cannot read '%s'", path);
        if (n > 0) {
            crypto_hash_sha256_update(&state, piece, (unsigned long long)n);
            total += n;
        }
    }
    crypto_hash_sha256_final(&state, sum);
    sodium_bin2hex(text, DIGEST_TEXT, sum, sizeof sum);
    if (size)
        *size = total;
    return 0;
}

void digest_bytes(const void *bytes, size_t n, char text[DIGEST_TEXT])
{
    unsigned char sum[crypto_hash_sha256_BYTES];
    crypto_hash_sha256(sum, bytes, n);
    sodium_bin2hex(text, DIGEST_TEXT, sum, sizeof sum);
}
