/* launcher/plugins/diagnose/render.c - see render.h */
#include "launcher/plugins/diagnose/render.h"

#include "common/idset.h"
#include "common/mem.h"

#include <stdlib.h>
#include <string.h>

static const char *text_of(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

/* With a limit, the innermost frames without those of Python's import system. */
static void print_frames(const json_t *frames, const char *indent, size_t max, FILE *f)
{
    const json_t *frame;
    size_t i, n = 0;
    json_array_foreach (frames, i, frame) {
        const json_t *line = json_object_get(frame, "line");
        if (max && strncmp(text_of(frame, "file"), "<frozen", strlen("<frozen")) == 0)
            continue;
        if (max && n++ == max) {
            fprintf(f, "%s...\n", indent);
            break;
        }
        fprintf(f, "%s%s", indent, text_of(frame, "function"));
        if (line)
            fprintf(f, "  %s:%lld", text_of(frame, "file"),
                    (long long)json_integer_value(line));
        fputc('\n', f);
    }
}

static const json_t *main_frames(const json_t *rank)
{
    return json_object_get(json_array_get(json_object_get(rank, "threads"), 0), "frames");
}

static bool alike(const json_t *a, const json_t *b)
{
    const json_t *x = main_frames(a), *y = main_frames(b);
    if (x || y)
        return x && y && json_equal(x, y);
    return strcmp(text_of(a, "state"), text_of(b, "state")) == 0 &&
           strcmp(text_of(a, "exited"), text_of(b, "exited")) == 0 &&
           strcmp(text_of(a, "unknown"), text_of(b, "unknown")) == 0;
}

static void print_state(const json_t *rank, FILE *f)
{
    const char *gone =
        *text_of(rank, "exited") ? text_of(rank, "exited") : text_of(rank, "unknown");
    const char *why = text_of(rank, "no_stacks");
    fprintf(f, "%s%s%s%s", *gone ? gone : text_of(rank, "state"),
            *text_of(rank, "wchan") ? " in " : "", text_of(rank, "wchan"),
            *why ? "; no stack: " : "");
    fprintf(f, "%s", why);
}

void render_stacks(const json_t *ranks, size_t max, size_t nframes, FILE *f)
{
    size_t n = json_array_size(ranks), shown = 0;
    OWNED bool *done = xcalloc(n + 1, sizeof *done);
    for (size_t i = 0; i < n; i++) {
        const json_t *rank = json_array_get(ranks, i);
        struct idset set = {0};
        if (done[i])
            continue;
        for (size_t k = i; k < n; k++) {
            const json_t *other = json_array_get(ranks, k);
            int number = (int)json_integer_value(json_object_get(other, "rank"));
            if (done[k] || !alike(rank, other))
                continue;
            idset_add(&set, number, number);
            done[k] = true;
        }
        if (shown++ < max) {
            OWNED char *text = idset_text(&set);
            fprintf(f, "  rank%s %s (", idset_count(&set) == 1 ? "" : "s", text);
            print_state(rank, f);
            fputs(")\n", f);
            print_frames(main_frames(rank), "    ", nframes, f);
        }
        idset_finish(&set);
    }
    if (shown > max)
        fprintf(f, "  and %zu other stacks\n", shown - max);
}

static void print_list(const json_t *list, const char *title, FILE *f)
{
    const json_t *row;
    size_t i;
    json_array_foreach (list, i, row) {
        OWNED char *text = json_dumps(row, JSON_COMPACT | JSON_PRESERVE_ORDER);
        fprintf(f, "  %s %s\n", title, text ? text : "?");
    }
}

static void print_sockets(const json_t *rank, FILE *f)
{
    static const struct {
        const char *key, *unit;
    } counts[] = {{"unread", "bytes "},
                  {"unsent", "bytes "},
                  {"retransmits", ""},
                  {"unaccepted", ""}};
    const json_t *s, *count, *to;
    size_t i;
    json_array_foreach (json_object_get(rank, "sockets"), i, s) {
        bool listens = strcmp(text_of(s, "state"), "listening") == 0;
        fprintf(f, "  socket %s%s%s", text_of(s, "local"), listens ? "" : " to ",
                listens ? "" : text_of(s, "peer"));
        if ((to = json_object_get(s, "rank")))
            fprintf(f, " (rank %lld)", (long long)json_integer_value(to));
        fprintf(f, ": %s", text_of(s, "state"));
        for (size_t k = 0; k < ARRAY_LEN(counts); k++) {
            if ((count = json_object_get(s, counts[k].key)))
                fprintf(f, ", %lld %s%s", (long long)json_integer_value(count),
                        counts[k].unit, counts[k].key);
        }
        fputc('\n', f);
    }
    const json_t *more = json_object_get(rank, "more_sockets");
    if (more)
        fprintf(f, "  and %lld other sockets\n", (long long)json_integer_value(more));
}

/* NCCL's text is on all processes of the job: that of one host suffices. */
static void render_ras(const json_t *ranks, FILE *f)
{
    const json_t *rank;
    size_t i;
    json_array_foreach (ranks, i, rank) {
        if (!*text_of(rank, "nccl_ras"))
            continue;
        fprintf(f, "\nNCCL on %s (RAS):\n%s\n", text_of(rank, "host"),
                text_of(rank, "nccl_ras"));
        return;
    }
}

void render_ranks(const json_t *ranks, FILE *f)
{
    const json_t *rank, *thread;
    size_t i, k;
    json_array_foreach (ranks, i, rank) {
        fprintf(f, "\nrank %lld on %s: ",
                (long long)json_integer_value(json_object_get(rank, "rank")),
                text_of(rank, "host"));
        print_state(rank, f);
        fprintf(f, "\n  pid %lld, %.2f s of CPU: %s\n",
                (long long)json_integer_value(json_object_get(rank, "pid")),
                json_real_value(json_object_get(rank, "cpu_s")),
                text_of(rank, "program"));
        print_list(json_object_get(rank, "groups"), "group", f);
        print_list(json_object_get(rank, "calls"), "call", f);
        print_list(json_object_get(rank, "below"), "process", f);
        print_sockets(rank, f);
        json_array_foreach (json_object_get(rank, "threads"), k, thread) {
            fprintf(f, "  thread %zu %s\n", k, text_of(thread, "name"));
            print_frames(json_object_get(thread, "frames"), "    ", 0, f);
        }
    }
    render_ras(ranks, f);
}
