/* launcher/alloc/sched.c - see sched.h */
#include "launcher/alloc/sched.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/number.h"
#include "common/text_file.h"
#include "launcher/alloc/hosts.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *sched_env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static int check_host_name(const char *variable, const char *host, struct ddp_err *err)
{
    const char *p = host;
    while (isalnum((unsigned char)*p) || (*p && strchr("._-", *p)))
        p++;
    if (!*p && *host && *host != '-')
        return 0;
    return err_set(err, "%s: '%s' is no name of a host", variable, SANITIZED(host));
}

const char *sched_submit_host(void)
{
    static const char *const names[] = {"SLURM_SUBMIT_HOST", "PBS_O_HOST", "SGE_O_HOST",
                                        "LSB_SUB_HOST"};
    struct ddp_err ignored;
    char own[HOST_NAME_MAX + 1] = "";
    gethostname(own, sizeof own - 1);
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        const char *host = sched_env(names[i]);
        if (!host || check_host_name(names[i], host, &ignored) < 0)
            continue;
        size_t n = strcspn(own, "."); /* one of both may have the domain */
        return n == strcspn(host, ".") && memcmp(own, host, n) == 0 ? NULL : host;
    }
    return NULL;
}

struct alloc_node *sched_add(struct alloc *alloc, const char *variable, const char *host,
                             struct ddp_err *err)
{
    return check_host_name(variable, host, err) < 0 ? NULL : alloc_add(alloc, host);
}

int sched_gpus(const char *name, const char *text, struct ddp_err *err)
{
    long sum = 0;
    for (const char *p = text;;) {
        const char *end = p + strcspn(p, ",");
        const char *colon = memrchr(p, ':', (size_t)(end - p));
        const char *at = colon ? colon + 1 : p;
        int n = sched_number(&at);
        if (n == 0 || at != end)
            return err_set(err, "%s='%s': expected '4' or 'v100:4'", name,
                           SANITIZED(text));
        sum += n;
        if (!*end)
            return sum > SCHED_COUNT_MAX ? SCHED_COUNT_MAX : (int)sum;
        p = end + 1;
    }
}

int sched_devices(const char *list)
{
    int n = 1;
    for (const char *p = strchr(list, ','); p; p = strchr(p + 1, ','))
        n++;
    return n;
}

void sched_count(const char *name, const char *unit, struct alloc *alloc)
{
    for (size_t i = 0; i < alloc->nnodes; i++) {
        int n = alloc->nodes[i].slots > 0 ? alloc->nodes[i].slots : 1;
        alloc_set_slots(&alloc->nodes[i], 0, SLOTS_UNSET, "%s: %d %s%s", name, n, unit,
                        n > 1 ? "s" : "");
        alloc->nodes[i].slots_else = n;
    }
}

int sched_hostfile(const char *name, const char *path, struct alloc *alloc,
                   struct ddp_err *err)
{
    if (hostfile_read(path, TEXT_FILE_SILENCE_MS, alloc, err) < 0)
        return err_prefix(err, "%s", name);
    sched_count(name, "time", alloc);
    return 0;
}

int sched_add_pair(struct hostbook *book, const struct host_place *place, char **words,
                   struct ddp_err *err)
{
    static const char blanks[] = " \t\r\n";
    const char *host = strtok_r(NULL, blanks, words),
               *slots = strtok_r(NULL, blanks, words);
    char line[24] = "";
    int n;
    if (!host)
        return 0;
    if (place->line > 0)
        snprintf(line, sizeof line, ":%ld", place->line);
    if (!slots || !number_whole(slots, 1, SLOTS_MAX, &n))
        return err_set(err, "%s%s: '%s%s%s': expected a host and a number of slots",
                       place->source, line, SANITIZED(host), slots ? " " : "",
                       slots ? SANITIZED(slots) : "");
    TRY(check_host_name(place->source, host, err));
    const struct host_entry e = {
        .host = host, .host_len = strlen(host), .literal = true, .slots = n};
    return hostbook_add(book, place, &e, err) < 0 ? -1 : 1;
}

/* `numbered`: in messages, as of a file. */
static int read_lines(const char *name, bool numbered, const char *text, size_t size,
                      sched_line_fn fn, struct alloc *alloc, struct ddp_err *err)
{
    struct hostbook *book = hostbook_create(alloc, REPEAT_ADDS);
    struct host_place place = {.source = name};
    int rc = 0;
    for (size_t at = 0; rc == 0 && at < size; at += place.len + 1) {
        const char *end = memchr(text + at, '\n', size - at);
        place.line += numbered;
        place.len = end ? (size_t)(end - text) - at : size - at;
        OWNED char *line = xstrndup(text + at, place.len);
        place.text = line;
        rc = fn(book, &place, line, err);
    }
    hostbook_destroy(book);
    return rc == 0 && alloc->nnodes == 0 ? err_set(err, "%s names no host", name) : rc;
}

int sched_variable(const char *name, const char *text, sched_line_fn fn,
                   struct alloc *alloc, struct ddp_err *err)
{
    return read_lines(name, false, text, strlen(text), fn, alloc, err);
}

int sched_file(const char *name, const char *path, sched_line_fn fn, struct alloc *alloc,
               struct ddp_err *err)
{
    size_t size;
    OWNED char *text =
        text_file_load("hostfile", path, HOSTFILE_MAX, TEXT_FILE_SILENCE_MS, &size, err);
    if (!text || read_lines(path, true, text, size, fn, alloc, err) < 0)
        return err_prefix(err, "%s", name);
    sched_count(name, "slot", alloc);
    return 0;
}
