/* launcher/plugins/diagnose/render.c - see render.h */
#include "launcher/plugins/diagnose/render.h"

#include "common/idset.h"
#include "common/json.h"
#include "common/mem.h"
#include "launcher/plugins/diagnose/place.h"

#include <stdlib.h>
#include <string.h>

/* With a limit, the innermost frames without those of Python's import system. */
static void print_frames(const json_t *frames, const char *indent, size_t max, FILE *f)
{
    const json_t *frame;
    size_t i, n = 0;
    json_array_foreach (frames, i, frame) {
        const json_t *line = json_object_get(frame, "line");
        if (max && strncmp(text_or(frame, "file", ""), "<frozen", strlen("<frozen")) == 0)
            continue;
        if (max && n++ == max) {
            fprintf(f, "%s...\n", indent);
            break;
        }
        fprintf(f, "%s%s", indent, text_or(frame, "function", ""));
        if (line)
            fprintf(f, "  %s:%lld", text_or(frame, "file", ""),
                    (long long)json_integer_value(line));
        fputc('\n', f);
    }
}

static bool alike(const json_t *a, const json_t *b)
{
    const json_t *x = main_frames(a), *y = main_frames(b);
    if (x || y)
        return x && y && json_equal(x, y);
    return is_text(a, "state", text_or(b, "state", "")) &&
           is_text(a, "exited", text_or(b, "exited", "")) &&
           is_text(a, "unknown", text_or(b, "unknown", ""));
}

static void print_state(const json_t *rank, FILE *f)
{
    const char *wchan = text_of(rank, "wchan"), *why = text_of(rank, "no_stacks");
    fputs(text_or(rank, "exited", text_or(rank, "unknown", text_or(rank, "state", ""))),
          f);
    if (wchan)
        fprintf(f, " in %s", wchan);
    if (why)
        fprintf(f, "; no stack: %s", why);
}

void render_stacks(const json_t *ranks, size_t max, size_t nframes, FILE *f)
{
    size_t n = json_array_size(ranks), shown = 0;
    OWNED bool *done = xcalloc(n + 1, sizeof *done);
    for (size_t i = 0; i < n; i++) {
        const json_t *rank = json_array_get(ranks, i);
        SCOPED(idset_finish) struct idset set = {0};
        if (done[i])
            continue;
        for (size_t k = i; k < n; k++) {
            const json_t *other = json_array_get(ranks, k);
            int number = (int)int_of(other, "rank");
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
        bool listens = is_text(s, "state", "listening");
        fprintf(f, "  socket %s%s%s", text_or(s, "local", ""), listens ? "" : " to ",
                listens ? "" : text_or(s, "peer", ""));
        if ((to = json_object_get(s, "rank")))
            fprintf(f, " (rank %lld)", (long long)json_integer_value(to));
        fprintf(f, ": %s", text_or(s, "state", ""));
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
        if (!*text_or(rank, "nccl_ras", ""))
            continue;
        fprintf(f, "\nNCCL on %s (RAS):\n%s\n", text_or(rank, "host", ""),
                text_or(rank, "nccl_ras", ""));
        return;
    }
}

void render_ranks(const json_t *ranks, FILE *f)
{
    const json_t *rank, *thread;
    size_t i, k;
    json_array_foreach (ranks, i, rank) {
        fprintf(f, "\nrank %lld on %s: ", (long long)int_of(rank, "rank"),
                text_or(rank, "host", ""));
        print_state(rank, f);
        fprintf(f, "\n  pid %lld, %.2f s of CPU: %s\n", (long long)int_of(rank, "pid"),
                number_of(rank, "cpu_s"), text_or(rank, "program", ""));
        print_list(json_object_get(rank, "groups"), "group", f);
        print_list(json_object_get(rank, "calls"), "call", f);
        print_list(json_object_get(rank, "below"), "process", f);
        print_sockets(rank, f);
        json_array_foreach (json_object_get(rank, "threads"), k, thread) {
            fprintf(f, "  thread %zu %s\n", k, text_or(thread, "name", ""));
            print_frames(json_object_get(thread, "frames"), "    ", 0, f);
        }
    }
    render_ras(ranks, f);
}
