/* tests/fuzz/fuzz_npy.c - a .npy file
 *
 * Aborts when an accepted file's shape and length contradict each other, and when a
 * refusal has no text.
 */
#include "tests/fuzz/fuzz.h"
#include "worker/data/idx.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct idx a;
    struct ddp_err err = {""};
    if (npy_parse("f", data, size, &a, &err) < 0) {
        if (err.text[0] == '\0' || a.data)
            abort();
        return 0;
    }
    size_t count = 1;
    for (int i = 0; i < a.ndim; i++)
        count *= a.dims[i];
    if (a.ndim < 1 || a.ndim > IDX_MAX_DIMS || a.count != count || count == 0 ||
        a.data + count * a.width != data + size)
        abort();
    for (size_t i = 0; i < count; i++) { /* each is a number of its width */
        uint64_t n = npy_integer(&a, i);
        unsigned bits = 8 * a.width, above = a.kind == 'i' ? bits - 1 : bits;
        if (bits < 64 && n >> above &&
            !(a.kind == 'i' && n >> above == UINT64_MAX >> above))
            abort();
    }
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    static const char *const headers[] = {
        "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 2, 3), }",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 3, 2, 2), }"};
    static const size_t bytes[] = {12, 24, 48};
    size_t which = n % 3, length = strlen(headers[which]), head = 10;
    size_t wide = n % 2 ? 2 : 0;
    uint8_t file[256] = "\x93NUMPY\1";
    head += wide;
    length += (64 - (head + length) % 64) % 64;
    file[6] = wide ? 2 : 1;
    file[8] = (uint8_t)length;
    memset(file + head, ' ', length);
    memcpy(file + head, headers[which], strlen(headers[which]));
    size_t size = head + length + bytes[which];
    size = size < room ? size : room;
    memcpy(data, file, size);
    return size;
}
