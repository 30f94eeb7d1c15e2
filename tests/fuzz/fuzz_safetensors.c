/* tests/fuzz/fuzz_safetensors.c - a checkpoint
 *
 * Input: the file. Aborts when a refusal has no text, and when an array that is handed
 * out is not wholly inside the file.
 */
#include "common/mem.h"
#include "tests/fuzz/fuzz.h"
#include "worker/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void look(struct safetensors *f, const char *name)
{
    struct array a;
    struct ddp_err err = {""};
    int found = safetensors_find(f, name, &a, &err);
    if (found < 0 && err.text[0] == '\0')
        abort();
    if (found <= 0)
        return;
    size_t count = 1;
    for (int i = 0; i < a.ndim; i++)
        count *= (size_t)a.dims[i];
    volatile uint32_t sum = 0; /* the sanitizer sees a read outside */
    for (size_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &a.data[i], sizeof bits);
        sum = sum + bits;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ddp_err err = {""};
    uint8_t *copy = xmemdup(data, size); /* aligned, and as long as the file */
    struct safetensors *f = safetensors_parse("f", copy, size, &err);
    if (!f && err.text[0] == '\0')
        abort();
    if (f) {
        look(f, "a");
        look(f, "b.weight");
        const char *step = safetensors_metadata(f, "step");
        if (step && strlen(step) > size)
            abort();
    }
    safetensors_free(f);
    free(copy);
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    static const char *const headers[] = {
        "{\"__metadata__\":{\"step\":\"7\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],"
        "\"data_offsets\":[0,8]},\"b.weight\":{\"dtype\":\"F32\",\"shape\":[],"
        "\"data_offsets\":[8,12]}}  ",
        "{\"a\":{\"data_offsets\":[4,12],\"shape\":[1,2],\"dtype\":\"F32\"}}",
    };
    const char *header = headers[n % 2];
    uint64_t length = strlen(header);
    size_t size = sizeof length + length + 12;
    if (size > room)
        return 0;
    memcpy(data, &length, sizeof length);
    memcpy(data + sizeof length, header, length);
    memset(data + sizeof length + length, 0x3f, 12);
    return size;
}
