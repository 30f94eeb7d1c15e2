/* launcher/plugins/diagnose/proc.c - see proc.h */
#include "launcher/plugins/diagnose/proc.h"

#include "common/ancestry.h"
#include "common/mem.h"
#include "common/read_start.h"
#include "common/text_file.h"
#include "include/ddprun/err.h"

#include <dirent.h>
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

enum { COMMAND_MAX = 200, STATUS_MAX = 8192, CHILDREN_MAX = 8192, MAPS_MAX = 16 << 20 };

/* The start of a file of the process, with a NUL; returns its length. */
static size_t proc_file(pid_t pid, const char *name, char *text, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    ssize_t n = read_start(path, text, size);
    return n > 0 ? (size_t)n : 0;
}

static void set_text(json_t *o, const char *key, const char *text)
{
    if (*text)
        json_object_set_new(o, key, json_string(text)); /* unless it is no UTF-8 */
}

/* The command line with blanks in place of the NULs, cut. */
static void command_of(pid_t pid, char text[COMMAND_MAX + 2])
{
    size_t n = proc_file(pid, "cmdline", text, COMMAND_MAX + 2);
    for (size_t i = 0; i + 1 < n; i++)
        text[i] = text[i] ? text[i] : ' ';
    if (n > COMMAND_MAX)
        strcpy(text + COMMAND_MAX - 3, "...");
}

char proc_state(pid_t pid)
{
    struct ancestry_proc p;
    return (char)(ancestry_read(pid, &p) ? p.state : 0);
}

bool proc_describe(pid_t pid, json_t *process)
{
    struct ancestry_use u;
    char command[COMMAND_MAX + 2], wchan[64];
    if (!ancestry_use(pid, &u))
        return false;
    const char *state = "in an unknown state";
    for (size_t i = 0; i < ARRAY_LEN(states); i++)
        state = states[i].letter == u.state ? states[i].state : state;
    json_object_set_new(process, "pid", json_integer(pid));
    json_object_set_new(process, "state", json_string(state));
    json_object_set_new(
        process, "cpu_s",
        json_real((double)(u.user + u.system) / (double)sysconf(_SC_CLK_TCK)));
    json_object_set_new(process, "nthreads", json_integer(u.threads));
    command_of(pid, command);
    set_text(process, "program", command);
    proc_file(pid, "wchan", wchan, sizeof wchan);
    set_text(process, "wchan", strcmp(wchan, "0") == 0 ? "" : wchan);
    return true;
}

uint64_t proc_signals(pid_t pid, const char *masks)
{
    char status[STATUS_MAX], name[16];
    uint64_t bits = 0;
    proc_file(pid, "status", status, sizeof status);
    for (int n; sscanf(masks, " %15s%n", name, &n) == 1; masks += n) {
        const char *line = strstr(status, name);
        bits |= line ? strtoull(line + strlen(name) + 1, NULL, 16) : 0;
    }
    return bits;
}

bool proc_link(pid_t pid, const char *name, char *text, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    ssize_t n = readlink(path, text, size - 1);
    text[n > 0 ? n : 0] = '\0';
    return n > 0;
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
        char name[48], list[CHILDREN_MAX], *p = list, *end;
        if (*d->d_name == '.')
            continue;
        snprintf(name, sizeof name, "task/%.20s/children", d->d_name);
        proc_file(pid, name, list, sizeof list);
        for (long child; (child = strtol(p, &end, 10)) > 0 && n < max; p = end)
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
