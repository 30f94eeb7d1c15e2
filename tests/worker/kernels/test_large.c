/* An activation of more than 2^31 numbers: none of their counts may be an int. Pages of
 * the arrays are shared, so that they take no memory; the tail is of its own.
 *     ./check.sh worker/kernels_large
 */
#include "tests/support/suite.h"

#include "worker/kernels/kernels.h"
#include "worker/kernels/pool.h"

#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIECE = 64 << 20, C = 4096 };
static const size_t most = (size_t)1 << 31;

/* `most` floats, the same in each PIECE bytes, and C more. */
static float *repeated(void)
{
    int fd = memfd_create("numbers", MFD_CLOEXEC);
    size_t bytes = most * sizeof(float);
    char *at = mmap(NULL, bytes + C * sizeof(float), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert(at != MAP_FAILED && ftruncate(fd, PIECE) == 0);
    for (size_t i = 0; i < bytes; i += PIECE)
        ck_assert(mmap(at + i, PIECE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                       0) != MAP_FAILED);
    close(fd);
    return (float *)(void *)at;
}

TEST(more_than_2_31_numbers_are_activated)
{
    const struct activation silu = {.linear = 1, .C = C};
    struct ddp_err err;
    const struct kernels *k = kernels_get(NULL, PRECISION_FP32, &err);
    float *x = repeated(), *y = repeated();
    ck_assert_msg(k != NULL, "%s", err.text);
    for (size_t i = 0; i < PIECE / sizeof(float); i++)
        x[i] = 1;
    for (size_t i = most; i < most + C; i++)
        x[i] = 2;
    pool_set(2);
    k->activation(silu, (int)(most / C) + 1, x, NULL, y);
    for (size_t i = 0; i < 2; i++) {
        double is = (double)(i ? y[most + C - 1] : y[0]), of = i ? 2 : 1;
        ck_assert_msg(fabs(is - of / (1 + exp(-of))) < 1e-6, "SiLU of %g: %g", of, is);
    }
    pool_set(1);
}
