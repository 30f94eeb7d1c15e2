/* common/utf8.h - characters of UTF-8 */
#ifndef COMMON_UTF8_H
#define COMMON_UTF8_H

#include <stddef.h>

/* Bytes of the character that begins at `text`; 0: none does. */
size_t utf8_length(const char *text);

/* For messages that quote a text: bytes of the character at `p`; 0 at the end of the
 * text. Bytes that are no UTF-8 count as part of the character before them. */
static inline int utf8_bytes(const char *p)
{
    int n = *p != '\0';
    while (n > 0 && ((unsigned char)p[n] & 0xc0) == 0x80)
        n++;
    return n;
}

#endif
