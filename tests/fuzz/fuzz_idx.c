/* tests/fuzz/fuzz_idx.c - a data file, plain or gz
 *
 * Input: a byte with the number of dimensions that are expected, then the file. Aborts
 * when an accepted file's dimensions and length contradict each other, and when a refusal
 * has no text or leaves memory behind.
 */
#include "tests/fuzz/fuzz.h"
#include "worker/data/idx.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    struct idx idx;
    struct ddp_err err = {""};
    int ndim = data[0] % IDX_MAX_DIMS + 1;
    if (idx_parse("f", data + 1, size - 1, ndim, &idx, &err) < 0) {
        if (err.text[0] == '\0' || idx.data)
            abort();
        return 0;
    }
    size_t count = 1, sum = 0;
    for (int i = 0; i < ndim; i++)
        count *= idx.dims[i];
    for (size_t i = 0; i < idx.count; i++)
        sum += idx.data[i]; /* each may be read */
    if (idx.ndim != ndim || idx.count != count || count == 0 || sum > 255 * count)
        abort();
    idx_finish(&idx);
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    static const char plain[] = "\2\0\0\10\3\0\0\0\2\0\0\0\2\0\0\0\3abcdefghijkl";
    /* the labels 7, 1, 7, 1 as gz */
    static const char gz[] =
        "\0"
        "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x63\x60\xe0\x60\x64\x60\x60\x60\x61\x67"
        "\x64\x67\x04\x00\xc7\xc0\xaa\x2e\x0c\x00\x00\x00";
    const char *seed = n % 2 ? gz : plain;
    size_t size = n % 2 ? sizeof gz - 1 : sizeof plain - 1;
    size = size < room ? size : room;
    memcpy(data, seed, size);
    return size;
}
