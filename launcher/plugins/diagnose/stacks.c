/* launcher/plugins/diagnose/stacks.c - see stacks.h */
#include "launcher/plugins/diagnose/stacks.h"

#include "common/json.h"
#include "common/mem.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* A text of another process may not be UTF-8, which jansson refuses. */
static json_t *text_json(const char *text)
{
    json_t *s = json_string(text);
    return s ? s : json_string("?");
}

static json_t *add_thread(json_t *threads, const char *name)
{
    json_t *frames = json_array();
    json_array_append_new(
        threads, json_pack("{s:o, s:o}", "name", text_json(name), "frames", frames));
    return frames;
}

static void set_place(json_t *frame, const char *file, long line)
{
    json_object_set_new(frame, "file", text_json(file));
    json_object_set_new(frame, "line", json_integer(line));
}

static json_t *add_frame(json_t *frames, const char *function)
{
    json_t *frame = json_object();
    json_object_set_new(frame, "function", text_json(function));
    json_array_append_new(frames, frame);
    return frame;
}

/*   File "data.py", line 10 in load */
static void python_frame(json_t *frames, char *line)
{
    char *file = strchr(line, '"'), *end = strstr(line, "\", line ");
    if (!frames || !file || !end)
        return;
    *end = '\0';
    char *number = end + strlen("\", line "), *in = strstr(number, " in ");
    json_t *frame = add_frame(frames, in ? in + strlen(" in ") : "?");
    set_place(frame, file + 1, strtol(number, NULL, 10));
}

static void reverse(json_t *array)
{
    for (size_t i = 0, n = json_array_size(array); i < n; i++) {
        json_t *last = json_incref(json_array_get(array, n - 1));
        json_array_remove(array, n - 1);
        json_array_insert_new(array, i, last);
    }
}

json_t *stacks_of_python(const char *text)
{
    json_t *threads = json_array(), *frames = NULL;
    OWNED char *copy = xstrdup(text);
    char *rest = copy, *line;
    while ((line = strsep(&rest, "\n"))) {
        if (strstr(line, "(most recent call first)")) {
            char *name = strchr(line, '['), *end = name ? strrchr(name, ']') : NULL;
            if (end)
                *end = '\0';
            frames = add_thread(threads, end ? name + 1 : "");
        } else if (strncmp(line, "  File ", strlen("  File ")) == 0) {
            python_frame(frames, line);
        }
    }
    reverse(threads);
    return threads;
}

json_t *stacks_of_pyspy(const char *text)
{
    json_auto_t *all = json_loads(text, 0, NULL);
    json_t *threads = json_array(), *thread, *frame;
    size_t i, k;
    json_array_foreach (all, i, thread) {
        json_t *frames = add_thread(threads, text_or(thread, "thread_name", ""));
        json_array_foreach (json_object_get(thread, "frames"), k, frame) {
            json_t *added = add_frame(frames, text_or(frame, "name", "?"));
            const char *file = text_of(frame, "filename");
            if (file)
                set_place(added, file, int_of(frame, "line"));
        }
    }
    reverse(threads);
    return threads;
}

/* The file that has the function: after " - " (eu-stack) or " from " (gdb), cut off.
 * NULL: unknown. */
static const char *cut_module(char *line)
{
    static const char *const marks[] = {" - /", " from /"};
    for (size_t i = 0; i < ARRAY_LEN(marks); i++) {
        char *mark = strstr(line, marks[i]);
        if (!mark)
            continue;
        *mark = '\0';
        return mark + strlen(marks[i]) - 1;
    }
    return NULL;
}

/* A frame of eu-stack, "#1  0x00005622 function - /lib/module", its place on a line of
 * its own; of gdb, "#1  0x00005622 in function (a=1) at file.c:12". */
static json_t *native_frame(json_t *frames, char *line)
{
    const char *module = cut_module(line);
    char *p = line + strcspn(line, " ");
    p += strspn(p, " ");
    if (strncmp(p, "0x", 2) == 0) {
        p += strcspn(p, " ");
        p += strspn(p, " ");
    }
    if (strncmp(p, "- 1", 3) == 0) /* the address after the call */
        p += 3 + strspn(p + 3, " ");
    if (strncmp(p, "in ", 3) == 0)
        p += 3;
    char *at = strstr(p, ") at ");
    p[strcspn(p, " (")] = '\0';
    json_t *frame = add_frame(frames, *p ? p : "?");
    char *colon = at ? strrchr(at, ':') : NULL;
    if (colon) {
        *colon = '\0';
        set_place(frame, at + strlen(") at "), strtol(colon + 1, NULL, 10));
    }
    if (module)
        json_object_set_new(frame, "module", text_json(module));
    return frame;
}

json_t *stacks_of_native(const char *text)
{
    json_t *threads = json_array(), *frames = NULL, *frame = NULL;
    OWNED char *copy = xstrdup(text);
    char *rest = copy, *line;
    bool gdb = false; /* which prints the main thread last */
    while ((line = strsep(&rest, "\n"))) {
        char *source = line + strspn(line, " ");
        if (strncmp(line, "TID ", 4) == 0 || strncmp(line, "Thread ", 7) == 0) {
            gdb |= *line == 'T' && line[1] == 'h';
            line[strcspn(line, ":")] = '\0';
            frames = add_thread(threads, line);
            frame = NULL;
        } else if (*line == '#') {
            if (!frames)
                frames = add_thread(threads, "");
            frame = native_frame(frames, line);
        } else if (frame && source > line && !json_object_get(frame, "file")) {
            char *colon = strchr(source, ':');
            if (colon && isdigit((unsigned char)colon[1])) {
                *colon = '\0';
                set_place(frame, source, strtol(colon + 1, NULL, 10));
            }
        }
    }
    if (gdb)
        reverse(threads);
    return threads;
}
