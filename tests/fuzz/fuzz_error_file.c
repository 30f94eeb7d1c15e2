/* tests/fuzz/fuzz_error_file.c - the JSON in which a rank writes its exception
 *
 * Aborts when the message is empty, longer than a line of ours, or has a control
 * character.
 */
#include "launcher/plugins/error_file/error_file.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = error_file_message((const char *)data, size);
    if (text && (!text[0] || strlen(text) > 400))
        abort();
    for (const char *p = text; p && *p; p++) {
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            abort();
    }
    free(text);
    return 0;
}

size_t fuzz_seed(unsigned n, uint8_t *data, size_t room)
{
    static const char *const seeds[] = {
        "{\"message\": {\"message\": \"ValueError: boom\", \"extraInfo\": {\"py_callstack\": \"a\\nb\"}}}",
        "{\"message\": \"RuntimeError: \\u00e9\\ud83d\\ude00 \\\"x\\\"\"}",
        "{\"timestamp\": [1, {\"a\": null}], \"message\": {\"errorCode\": -3, \"message\": \"\\t\"}}",
    };
    size_t len = strlen(seeds[n % 3]);
    len = len < room ? len : room;
    memcpy(data, seeds[n % 3], len);
    return len;
}
