/* launcher/agent/error_file.c - see error_file.h
 *
 * Only as much JSON parsing as finding one string takes: other values are skipped by
 * counting brackets outside strings.
 */
#include "launcher/agent/error_file.h"

#include "common/mem.h"

#include <stdbool.h>
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

struct cursor {
    const char *p, *end;
};

static void skip_blanks(struct cursor *c)
{
    while (c->p < c->end && strchr(" \t\r\n", *c->p) && *c->p)
        c->p++;
}

static bool take(struct cursor *c, char what)
{
    skip_blanks(c);
    if (c->p == c->end || *c->p != what)
        return false;
    c->p++;
    return true;
}

static int hex4(const char *p, const char *end)
{
    int v = 0;
    for (int i = 0; i < 4; i++) {
        static const char digits[] = "0123456789abcdef";
        const char *d = p + i < end && p[i] ? strchr(digits, p[i] | 0x20) : NULL;
        if (!d)
            return -1;
        v = v << 4 | (int)(d - digits);
    }
    return v;
}

static void put_utf8(FILE *f, int u)
{
    int more = u < 0x80 ? 0 : u < 0x800 ? 1 : u < 0x10000 ? 2 : 3;
    static const int lead[] = {0, 0xc0, 0xe0, 0xf0};
    fputc(lead[more] | u >> 6 * more, f);
    while (more-- > 0)
        fputc(0x80 | (u >> 6 * more & 0x3f), f);
}

/* Decode the digits after "\u": one code point, from a surrogate pair if above 0xffff. */
static bool put_escaped(struct cursor *c, FILE *f)
{
    int u = hex4(c->p, c->end), low;
    if (u < 0)
        return false;
    c->p += 4;
    if ((u & 0xfc00) == 0xd800 && c->end - c->p >= 6 && c->p[0] == '\\' &&
        c->p[1] == 'u' && ((low = hex4(c->p + 2, c->end)) & 0xfc00) == 0xdc00) {
        c->p += 6;
        u = 0x10000 + ((u & 0x3ff) << 10 | (low & 0x3ff));
    } else if ((u & 0xf800) == 0xd800) {
        u = '?'; /* an unpaired surrogate */
    }
    put_utf8(f, u);
    return true;
}

/* From behind the opening quote to the closing one, which is consumed; into `f`. */
static bool read_string(struct cursor *c, FILE *f)
{
    static const char from[] = "nrtbf", to[] = "\n\r\t\b\f";
    while (c->p < c->end && *c->p != '"') {
        char b = *c->p++;
        if (b != '\\') {
            fputc(b, f);
            continue;
        }
        if (c->p == c->end)
            return false;
        b = *c->p++;
        const char *e = b ? strchr(from, b) : NULL;
        if (b == 'u' && !put_escaped(c, f))
            return false;
        if (b != 'u')
            fputc(e ? to[e - from] : b, f);
    }
    return take(c, '"');
}

static char *string_of(struct cursor *c)
{
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    bool good = read_string(c, f);
    fclose(f);
    if (good)
        return text;
    free(text);
    return NULL;
}

/* Skip a value of any type. */
static bool skip_value(struct cursor *c)
{
    int depth = 0;
    do {
        skip_blanks(c);
        if (c->p == c->end)
            return false;
        char b = *c->p++;
        if (b == '"') {
            char *s = string_of(c);
            if (!s)
                return false;
            free(s);
        } else if (b == '{' || b == '[') {
            depth++;
        } else if (b == '}' || b == ']') {
            depth--;
        }
        skip_blanks(c);
    } while (depth > 0 || (c->p < c->end && *c->p != ',' && *c->p != '}'));
    return depth == 0;
}

/* The string "message" of the object that begins here; if "message" is itself an object,
 * the string "message" in it. */
static char *find_message(struct cursor *c)
{
    bool more = take(c, '{');
    while (more) {
        char *key = take(c, '"') ? string_of(c) : NULL;
        bool found = key && strcmp(key, "message") == 0;
        free(key);
        if (!key || !take(c, ':'))
            return NULL;
        if (found && take(c, '"'))
            return string_of(c);
        if (!found || !take(c, '{'))
            more = skip_value(c) && take(c, ',');
    }
    return NULL;
}

char *error_file_message(const char *json, size_t n)
{
    struct cursor c = {json, json + n};
    char *text = find_message(&c);
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
    char *json = xcalloc((size_t)size, 1);
    ssize_t got = pread(fd, json, (size_t)size, 0);
    char *text = got > 0 ? error_file_message(json, (size_t)got) : NULL;
    free(json);
    return text;
}
