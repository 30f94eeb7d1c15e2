/* tests/fuzz/fuzz_flux.c - the JSON (RFC 20's R) in which Flux names the nodes of a job
 *
 * Aborts when an R that was accepted has no node, a name that no host has or slots below
 * 0, and when a refusal has no words or was cut short.
 */
#include "launcher/alloc/flux.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

/* A million names or ranks take as long as a thousand other inputs. */
static bool is_slow(const uint8_t *data, size_t size)
{
    size_t run = 0, longest = 0;
    for (size_t i = 0; i < size; i++) {
        run = data[i] >= '0' && data[i] <= '9' ? run + 1 : 0;
        longest = run > longest ? run : longest;
    }
    return longest > 3;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ddp_err err = {""};
    if (is_slow(data, size))
        return 0;
    struct alloc *a = calloc(1, sizeof *a);
    if (!a)
        abort();
    int rc = flux_parse((const char *)data, size, a, &err);
    if (rc == 0 && a->nnodes == 0)
        abort();
    for (size_t i = 0; rc == 0 && i < a->nnodes; i++) {
        if (!a->nodes[i].name[0] || a->nodes[i].slots < 0)
            abort();
    }
    if (rc < 0 && (!err.text[0] || strlen(err.text) >= sizeof err.text - 1))
        abort();
    alloc_destroy(a);
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    static const char *const seeds[] = {
        "{\"version\": 1, \"execution\": {\"R_lite\": [{\"rank\": \"0-1\", \"children\": {\"core\": "
        "\"0-7\", \"gpu\": \"0-3\"}}], \"nodelist\": [\"n[1-2]\"]}}",
        "{\"execution\": {\"R_lite\": [{\"rank\": \"0\"}, {\"rank\": \"3,5\", \"children\": "
        "{\"gpu\": \"1\"}}], \"nodelist\": [\"a\", \"b[07,9]-ib\"], \"starttime\": 0.5}}",
        "{\"execution\": {\"R_lite\": [], \"nodelist\": []}}",
    };
    size_t len = strlen(seeds[n % 3]);
    len = len < room ? len : room;
    memcpy(data, seeds[n % 3], len);
    return len;
}
