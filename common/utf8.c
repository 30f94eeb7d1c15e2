/* common/utf8.c - see utf8.h */
#include "common/utf8.h"

#include "common/mem.h"

#include <stdbool.h>
#include <stdint.h>

size_t utf8_length(const char *text)
{
    static const struct {
        unsigned char mask, lead;
        uint32_t least;
    } forms[] = {
        {0x80, 0, 0}, {0xe0, 0xc0, 0x80}, {0xf0, 0xe0, 0x800}, {0xf8, 0xf0, 0x10000}};
    const unsigned char *p = (const unsigned char *)text;
    for (size_t n = 0; n < ARRAY_LEN(forms); n++) {
        if ((p[0] & forms[n].mask) != forms[n].lead)
            continue;
        uint32_t code = p[0] & (uint32_t)~forms[n].mask;
        for (size_t i = 1; i <= n; i++) {
            if ((p[i] & 0xc0) != 0x80)
                return 0;
            code = code << 6 | (p[i] & 0x3f);
        }
        bool surrogate = code >= 0xd800 && code < 0xe000;
        return code >= forms[n].least && code < 0x110000 && !surrogate ? n + 1 : 0;
    }
    return 0;
}
