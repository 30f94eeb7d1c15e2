/* launcher/plugins/error_file/error_file.c - see error_file.h */
#include "launcher/plugins/error_file/error_file.h"

#include "common/mem.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* bytes: a message with a call stack takes a few KiB; limit of the line we report */
enum { JSON_MAX = 256 << 10, LINE_MAX_BYTES = 400 };

int error_file_open(char path[ERROR_FILE_PATH])
{
    struct rlimit files;
    int fd = memfd_create("error-file", MFD_CLOEXEC);
    if (fd < 0)
        return -1;
    /* keep half of a low limit for the ranks' pipes */
    if (getrlimit(RLIMIT_NOFILE, &files) == 0 && (rlim_t)fd >= files.rlim_cur / 2) {
        close(fd);
        return -1;
    }
    snprintf(path, ERROR_FILE_PATH, "/proc/%d/fd/%d", (int)getpid(), fd);
    return fd;
}

/* Python writes undecodable bytes of file names as unpaired surrogates, which jansson
 * rejects: make them question marks. */
static void replace_unpaired(char *json)
{
    for (char *p = json; (p = strchr(p, '\\')) && p[1]; p += 2) {
        unsigned u, low = 0;
        if (sscanf(p, "\\u%4x", &u) != 1 || (u & 0xf800) != 0xd800)
            continue;
        if (u < 0xdc00 && sscanf(p + 6, "\\u%4x", &low) == 1 && (low & 0xfc00) == 0xdc00)
            p += 6;
        else
            memcpy(p + 2, "003f", 4);
    }
}

char *error_file_message(const char *json, size_t n)
{
    json_error_t why;
    OWNED char *copy = xstrndup(json, n);
    replace_unpaired(copy);
    json_auto_t *root = json_loads(copy, 0, &why);
    const json_t *message = json_object_get(root, "message");
    if (json_is_object(message))
        message = json_object_get(message, "message");
    char *text = xstrdup(json_string_value(message));
    if (!text)
        return NULL;
    text[strcspn(text, "\r\n")] = '\0';
    size_t len = strlen(text);
    while (len > LINE_MAX_BYTES || (len > 0 && text[len] && (text[len] & 0xc0) == 0x80))
        len--; /* do not cut within a UTF-8 character */
    text[len] = '\0';
    for (char *p = text; *p; p++) {
        if ((unsigned char)*p < ' ' || *p == 0x7f)
            *p = ' ';
    }
    if (text[0])
        return text;
    free(text);
    return NULL;
}

char *error_file_read(int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    if (size <= 0 || size > JSON_MAX)
        return NULL;
    OWNED char *json = xcalloc((size_t)size, 1);
    ssize_t got = pread(fd, json, (size_t)size, 0);
    return got > 0 ? error_file_message(json, (size_t)got) : NULL;
}
