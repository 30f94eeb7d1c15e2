/* launcher/plugins/diagnose/proc.c - see proc.h */
#include "launcher/plugins/diagnose/proc.h"

#include "common/ancestry.h"
#include "common/mem.h"
#include "common/text_file.h"
#include "include/ddprun/err.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const struct {
    char letter;
    const char *state;
} states[] = {
    {'R', "running"},
    {'S', "sleeping"},
    {'D', "in uninterruptible sleep"},
    {'T', "stopped"},
    {'t', "stopped by a debugger"},
    {'Z', "exited"},
};

enum { FILE_MAX = 8191, MAPS_MAX = 16 << 20 };

/* A file of the process, cut at FILE_MAX, with a NUL; malloc'ed, NULL: unreadable. */
static char *proc_file(pid_t pid, const char *name, size_t *size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    SCOPED(close_fd) int fd = open(path, O_RDONLY | O_CLOEXEC);
    char *text = fd < 0 ? NULL : malloc(FILE_MAX + 1);
    size_t n = 0;
    ssize_t got = 1;
    while (text && n < FILE_MAX && (got = read(fd, text + n, FILE_MAX - n)) > 0)
        n += (size_t)got;
    if (text)
        text[n] = '\0';
    if (size)
        *size = n;
    return text;
}

static void set_text(json_t *o, const char *key, char *text)
{
    json_t *value = text && *text ? json_string(text) : NULL;
    if (value)
        json_object_set_new(o, key, value);
    free(text);
}

/* The command line with blanks in place of the NULs, cut. */
static char *command_of(pid_t pid)
{
    size_t n;
    char *text = proc_file(pid, "cmdline", &n);
    for (size_t i = 0; text && i + 1 < n; i++)
        text[i] = text[i] ? text[i] : ' ';
    if (text && n > 200)
        strcpy(text + 197, "...");
    return text;
}

char proc_state(pid_t pid)
{
    struct ancestry_proc p;
    return (char)(ancestry_read(pid, &p) ? p.state : 0);
}

bool proc_describe(pid_t pid, json_t *process)
{
    char text[1024];
    const char *fields = ancestry_fields(pid, text, sizeof text);
    unsigned long user = 0, system = 0;
    int threads = 0;
    char letter = 0;
    if (!fields ||
        sscanf(fields,
               " %c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d "
               "%*d %d",
               &letter, &user, &system, &threads) != 4)
        return false;
    const char *state = "in an unknown state";
    for (size_t i = 0; i < ARRAY_LEN(states); i++)
        state = states[i].letter == letter ? states[i].state : state;
    json_object_set_new(process, "pid", json_integer(pid));
    json_object_set_new(process, "state", json_string(state));
    json_object_set_new(
        process, "cpu_s",
        json_real((double)(user + system) / (double)sysconf(_SC_CLK_TCK)));
    json_object_set_new(process, "nthreads", json_integer(threads));
    set_text(process, "program", command_of(pid));
    char *wchan = proc_file(pid, "wchan", NULL);
    if (wchan && strcmp(wchan, "0") == 0)
        *wchan = '\0';
    set_text(process, "wchan", wchan);
    return true;
}

uint64_t proc_signals(pid_t pid, const char *masks)
{
    OWNED char *status = proc_file(pid, "status", NULL);
    char name[16];
    uint64_t bits = 0;
    for (int n; status && sscanf(masks, " %15s%n", name, &n) == 1; masks += n) {
        const char *line = strstr(status, name);
        bits |= line ? strtoull(line + strlen(name) + 1, NULL, 16) : 0;
    }
    return bits;
}

bool proc_maps(pid_t pid, const char *text)
{
    char path[32];
    size_t size;
    struct ddp_err err;
    snprintf(path, sizeof path, "/proc/%d/maps", (int)pid);
    OWNED char *maps = text_file_load("map of memory", path, MAPS_MAX,
                                      TEXT_FILE_SILENCE_MS, &size, &err);
    return maps && strstr(maps, text);
}

static size_t add_children(pid_t pid, pid_t *pids, size_t n, size_t max)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    SCOPED(close_folder) DIR *tasks = opendir(path);
    for (struct dirent *d; tasks && (d = readdir(tasks));) {
        char name[48];
        if (*d->d_name == '.')
            continue;
        snprintf(name, sizeof name, "task/%.20s/children", d->d_name);
        OWNED char *list = proc_file(pid, name, NULL);
        char *p = list, *end;
        for (long child; p && (child = strtol(p, &end, 10)) > 0 && n < max; p = end)
            pids[n++] = (pid_t)child;
    }
    return n;
}

size_t proc_tree(pid_t pid, pid_t *pids, size_t max)
{
    size_t n = 0;
    pids[n++] = pid;
    for (size_t i = 0; i < n; i++)
        n = add_children(pids[i], pids, n, max);
    return n;
}
