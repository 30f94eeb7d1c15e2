/* rendezvous/store/bytes.c - see bytes.h */
#include "rendezvous/store/bytes.h"

#include <stdio.h>

enum { SHOWN = 60 };

const char *bytes_show(struct bytes b, char *text, size_t size)
{
    const unsigned char *p = b.data;
    size_t n = b.size < SHOWN ? b.size : SHOWN, used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < n && used + 8 < size; i++) {
        bool plain = p[i] >= 0x20 && p[i] < 0x7f && p[i] != '\\';
        used +=
            (size_t)snprintf(text + used, size - used, plain ? "%c" : "\\x%02x", p[i]);
    }
    if (n < b.size)
        snprintf(text + used, size - used, "...");
    return text;
}
