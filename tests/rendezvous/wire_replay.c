/* Replays conversations against the engine: wire_replay DIR...
 *
 * Every *.txt below each DIR is played three ways: as written, byte by byte, and with
 * each client line cut in two at every place. The format is that of
 * tests/data/tcpstore/README.md. Where our server differs from the recorded one on purpose,
 * the table below says how and why.
 */
#include "tests/rendezvous/world.h"

#include "common/mem.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LINE_MAX_SIZE = 1 << 17, CUT_LINES_UP_TO = 400, FAILURES_SHOWN = 20 };

/* `ours`: what our server says in this case, connection by connection; NULL: the section
 * is left out, since what follows depends on it. */
static const struct difference {
    const char *file, *title, *ours, *why;
} differences[] = {
#include "tests/rendezvous/wire_differences.h"
};

struct player {
    struct world world;
    const char *path;
    int line, failures;
    size_t cut;     /* 0: as written; SIZE_MAX: every byte; else cut there */
    size_t longest; /* client line seen */
    const struct difference *differs;
    bool after_list_keys, close_expected[WORLD_PEERS];
};

static void fail(struct player *p, const char *what, const char *detail)
{
    if (p->failures++ < FAILURES_SHOWN)
        fprintf(stderr, "%s:%d: %s%s (cut %zd)\n", p->path, p->line, what, detail,
                (ssize_t)p->cut);
}

static size_t unhex(const char *text, uint8_t *bytes)
{
    size_t n = 0;
    unsigned byte;
    while (isxdigit((unsigned char)text[0]) && sscanf(text, "%2x", &byte) == 1) {
        bytes[n++] = (uint8_t)byte;
        text += 2;
    }
    return n;
}

static void hex(const uint8_t *bytes, size_t n, char *text, size_t size)
{
    text[0] = '\0';
    for (size_t i = 0; i < n && 2 * i + 3 < size; i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
}

/* -- one line -------------------------------------------------------------------------
 */

static void client_says(struct player *p, int who, const uint8_t *bytes, size_t n)
{
    p->after_list_keys = n == 1 && bytes[0] == 0x11;
    if (n > p->longest)
        p->longest = n;
    if (p->cut == SIZE_MAX) {
        for (size_t i = 0; i < n; i++)
            world_send(&p->world, who, bytes + i, 1);
    } else if (p->cut > 0 && p->cut < n) {
        world_send(&p->world, who, bytes, p->cut);
        world_send(&p->world, who, bytes + p->cut, n - p->cut);
    } else {
        world_send(&p->world, who, bytes, n);
    }
}

static int by_bytes(const void *a, const void *b)
{
    const struct bytes *x = a, *y = b;
    size_t n = x->size < y->size ? x->size : y->size;
    int order = memcmp(x->data, y->data, n);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

/* LIST_KEYS has no order: the strings behind the count, sorted. */
static bool same_keys(const uint8_t *a, const uint8_t *b, size_t n)
{
    uint64_t count;
    if (n < sizeof count || memcmp(a, b, sizeof count) != 0)
        return false;
    memcpy(&count, a, sizeof count);
    struct bytes *x = xcalloc(count + 1, sizeof *x), *y = xcalloc(count + 1, sizeof *y);
    const uint8_t *p = a + sizeof count, *q = b + sizeof count;
    for (size_t i = 0; i < count; i++) {
        x[i] = packed_next(&p);
        y[i] = packed_next(&q);
    }
    qsort(x, count, sizeof *x, by_bytes);
    qsort(y, count, sizeof *y, by_bytes);
    bool same = true;
    for (size_t i = 0; i < count && same; i++)
        same = bytes_equal(x[i], y[i]);
    free(x);
    free(y);
    return same;
}

static void server_says(struct player *p, int who, const uint8_t *want, size_t n)
{
    uint8_t *got = xcalloc(n + 1, 1);
    char text[200];
    size_t m = world_take(&p->world, who, got, n);
    if (m != n ||
        (memcmp(got, want, n) != 0 && !(p->after_list_keys && same_keys(got, want, n)))) {
        hex(got, m, text, sizeof text);
        fail(p, "we say ", *text ? text : "nothing");
    }
    free(got);
}

static void connection_event(struct player *p, char side, int who, const char *what)
{
    if (side == 'C' && strcmp(what, "open") == 0) {
        world_open(&p->world, who, 0);
    } else if (side == 'C') {
        world_close(&p->world, who);
    } else {
        p->close_expected[who] = true;
        if (!p->world.peers[who].closed)
            fail(p, "we do not close", "");
        if (world_pending(&p->world, who) > 0)
            fail(p, "we say something before we close", "");
    }
}

/* -- sections -------------------------------------------------------------------------
 */

static const struct difference *difference_find(const char *path, const char *title)
{
    for (size_t i = 0; i < ARRAY_LEN(differences); i++) {
        const struct difference *d = &differences[i];
        size_t n = strlen(path), m = strlen(d->file);
        if (n >= m && strcmp(path + n - m, d->file) == 0 && strcmp(d->title, title) == 0)
            return d;
    }
    return NULL;
}

/* "1:34120000 2:00close" */
static void transcript(struct player *p, char *text, size_t size)
{
    text[0] = '\0';
    for (int who = 0; who < WORLD_PEERS; who++) {
        uint8_t bytes[1024];
        size_t n = world_take(&p->world, who, bytes, sizeof bytes), used = strlen(text);
        if (n == 0 && !p->world.peers[who].closed)
            continue;
        used += (size_t)snprintf(text + used, size - used, "%s%d:", used ? " " : "", who);
        hex(bytes, n, text + used, size - used);
        if (p->world.peers[who].closed)
            snprintf(text + strlen(text), size - strlen(text), "close");
    }
}

static void section_end(struct player *p)
{
    char text[4096];
    for (int who = 0; who < WORLD_PEERS && !p->differs; who++) {
        if (p->world.peers[who].closed && !p->close_expected[who])
            fail(p, "we close: ", p->world.peers[who].why.text);
        if (world_pending(&p->world, who) > 0) {
            transcript(p, text, sizeof text);
            fail(p, "besides, we say ", text);
        }
    }
    if (p->differs && p->differs->ours) {
        transcript(p, text, sizeof text);
        if (strcmp(text, p->differs->ours) != 0)
            fail(p, "in this case we say ", text);
    }
}

/* A new case has fresh connections to the same store. */
static void case_begin(struct player *p, const char *title)
{
    section_end(p);
    for (int who = 0; who < WORLD_PEERS; who++) {
        world_close(&p->world, who);
        out_finish(&p->world.peers[who].out);
        p->world.peers[who].closed = p->close_expected[who] = false;
    }
    p->differs = difference_find(p->path, title);
}

static void comment(struct player *p, const char *text)
{
    int who = 1;
    if (text[0] == ' ' && text[1] == ' ')
        return; /* an explanation of the next line */
    const char *quiet = strstr(text, ": no reply");
    if (quiet) {
        sscanf(text, " C%d", &who);
        if (world_pending(&p->world, who) > 0 && !p->differs)
            fail(p, "we do say something", "");
    } else if (strncmp(text, " pause", 6) != 0 && !(p->differs && p->differs->ours)) {
        p->differs = difference_find(p->path, text + 1);
    }
}

static void play_line(struct player *p, char *line, uint8_t *bytes)
{
    if (line[0] == '=') {
        case_begin(p, line + 2);
        return;
    }
    if (line[0] == '#') {
        comment(p, line + 1);
        return;
    }
    if ((line[0] != 'C' && line[0] != 'S') || (p->differs && !p->differs->ours))
        return;
    char *at = line + 1;
    int who = isdigit((unsigned char)*at) ? (int)strtol(at, &at, 10) : 1;
    if (*at == '!') {
        if (line[0] == 'C' || !p->differs)
            connection_event(p, line[0], who, at + 2);
        return;
    }
    size_t n = unhex(at + 2, bytes);
    if (line[0] == 'C')
        client_says(p, who, bytes, n);
    else if (!p->differs)
        server_says(p, who, bytes, n);
}

/* -- files
 * ------------------------------------------------------------------------------- */

static int play(const char *path, size_t cut, size_t *longest)
{
    struct player *p = xcalloc(1, sizeof *p);
    char *line = xcalloc(1, LINE_MAX_SIZE);
    uint8_t *bytes = xcalloc(1, LINE_MAX_SIZE);
    FILE *f = fopen(path, "re");
    p->path = path;
    p->cut = cut;
    world_init(&p->world, DIALECT_AUTO);
    while (f && fgets(line, LINE_MAX_SIZE, f)) {
        line[strcspn(line, "\r\n")] = '\0';
        p->line++;
        play_line(p, line, bytes);
    }
    section_end(p);
    if (!f || p->line == 0)
        fail(p, "nothing in it", "");
    if (f)
        fclose(f);
    int failures = p->failures;
    if (longest)
        *longest = p->longest;
    world_finish(&p->world);
    free(p);
    free(line);
    free(bytes);
    return failures;
}

static int play_all_ways(const char *path)
{
    size_t longest;
    int failures = play(path, 0, &longest);
    failures += play(path, SIZE_MAX, NULL);
    for (size_t cut = 1; cut < longest && cut < CUT_LINES_UP_TO; cut++)
        failures += play(path, cut, NULL);
    return failures;
}

static int play_below(const char *dir, int *nfiles)
{
    struct dirent **names;
    int n = scandir(dir, &names, NULL, alphasort), failures = 0;
    for (int i = 0; i < n; i++) {
        char *path = xasprintf("%s/%s", dir, names[i]->d_name);
        struct stat st;
        const char *dot = strrchr(names[i]->d_name, '.');
        if (names[i]->d_name[0] != '.' && stat(path, &st) == 0) {
            if (S_ISDIR(st.st_mode)) {
                failures += play_below(path, nfiles);
            } else if (dot && strcmp(dot, ".txt") == 0) {
                failures += play_all_ways(path);
                ++*nfiles;
            }
        }
        free(path);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
    return failures;
}

int main(int argc, char **argv)
{
    int failures = 0;
    for (int i = 1; i < argc; i++) {
        int nfiles = 0;
        failures += play_below(argv[i], &nfiles);
        printf("%s: %d conversations, %d differences\n", argv[i], nfiles, failures);
        if (nfiles == 0)
            failures++;
    }
    return failures > 0;
}
