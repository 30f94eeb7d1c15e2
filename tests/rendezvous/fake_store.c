/* tests/rendezvous/fake_store.c - see fake_store.h */
#include "tests/rendezvous/fake_store.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/sock.h"
#include "tests/support/suite.h"

#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATIENCE_MS 20000

struct fake {
    int listener, fd, port;
    const char *script; /* borrowed */
    pthread_t thread;
    char trouble[300]; /* empty: all as written */
};

static const char hello_c[] = "x00cef7853c .6 #1 \"in-order?\" .5 #0 .12";

static bool ready(int fd)
{
    return poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, PATIENCE_MS) > 0;
}

static size_t le(unsigned char *to, uint64_t v, size_t size)
{
    for (size_t i = 0; i < size; i++)
        to[i] = (unsigned char)(v >> (8 * i));
    return size;
}

/* One word to bytes; moves *at behind it. */
static size_t word(const char **at, unsigned char *to)
{
    const char *p = *at;
    size_t n = 0;
    if (*p == '.') {
        n = le(to, strtoull(p + 1, NULL, 10), 1);
    } else if (*p == '#') {
        n = le(to, (uint64_t)strtoll(p + 1, NULL, 10), 8);
    } else if (*p == '"') {
        size_t len = strcspn(p + 1, "\"");
        le(to, len, 8);
        memcpy(to + 8, p + 1, len);
        *at = p + len + 2;
        return len + 8;
    } else if (*p == 'x') {
        for (const char *h = p + 1; *h && !strchr(" ;\n", *h); h += 2)
            to[n++] = (unsigned char)strtoul((char[]){h[0], h[1], 0}, NULL, 16);
    } else {
        abort(); /* a script that cannot be read is a fault of the test */
    }
    *at = p + strcspn(p, " ;\n");
    return n;
}

static size_t line_bytes(const char *p, unsigned char *to)
{
    size_t n = 0;
    while (*(p += strspn(p, " ")) && *p != ';' && *p != '\n')
        n += word(&p, to + n);
    return n;
}

static void hex(char *to, size_t room, const unsigned char *from, size_t n)
{
    size_t at = 0;
    for (size_t i = 0; i < n && at + 3 < room; i++)
        at += (size_t)snprintf(to + at, room - at, "%02x", from[i]);
}

static bool expect(struct fake *f, const char *line)
{
    unsigned char want[8192], got[8192];
    size_t n = line_bytes(line, want), have = 0;
    while (have < n && ready(f->fd)) {
        ssize_t r = read(f->fd, got + have, n - have);
        if (r <= 0)
            break;
        have += (size_t)r;
    }
    if (have == n && memcmp(want, got, n) == 0)
        return true;
    char text[200] = "";
    hex(text, sizeof text, got, have);
    snprintf(f->trouble, sizeof f->trouble, "at '%.60s': came %s", line, text);
    return false;
}

static bool reply(struct fake *f, const char *line)
{
    unsigned char bytes[8192];
    size_t n = line_bytes(line, bytes);
    return write(f->fd, bytes, n) == (ssize_t)n;
}

/* Runs one line; false ends the script. */
static bool step(struct fake *f, const char *line)
{
    char rest;
    if (strncmp(line, "hello", 5) == 0)
        return expect(f, hello_c) &&
               reply(f, strncmp(line, "hello in", 8) == 0 ? ".1 .0" : ".0 .1");
    if (*line == 'C')
        return expect(f, line + 1);
    if (*line == 'S')
        return reply(f, line + 1);
    if (strncmp(line, "deaf", 4) == 0) {
        while (ready(f->fd) && read(f->fd, &rest, 1) > 0)
            ;
        return false;
    }
    if (strncmp(line, "silence", 7) == 0 && ready(f->fd) && read(f->fd, &rest, 1) != 0)
        snprintf(f->trouble, sizeof f->trouble,
                 "the client said more, or nothing at all");
    return false;
}

static void *play(void *arg)
{
    struct fake *f = arg;
    if (!ready(f->listener) || (f->fd = accept(f->listener, NULL, NULL)) < 0) {
        snprintf(f->trouble, sizeof f->trouble, "no client came");
        return NULL;
    }
    const char *line = f->script;
    do {
        line += strspn(line, " ;\n");
    } while (*line && step(f, line) && (line = line + strcspn(line, ";\n")));
    close(f->fd);
    return NULL;
}

struct fake *fake_start(const char *script)
{
    struct ddp_err err = {""};
    struct fake *f = xcalloc(1, sizeof *f);
    f->script = script;
    f->listener = sock_listen("127.0.0.1", 0, &f->port, &err);
    ck_assert_msg(f->listener >= 0, "%s", err.text);
    ck_assert_int_eq(pthread_create(&f->thread, NULL, play, f), 0);
    return f;
}

int fake_port(const struct fake *f)
{
    return f->port;
}

const char *fake_end(struct fake *f)
{
    static char trouble[sizeof f->trouble];
    pthread_join(f->thread, NULL);
    close(f->listener);
    memcpy(trouble, f->trouble, sizeof trouble);
    free(f);
    return *trouble ? trouble : NULL;
}
