/* launcher/plugins/diagnose/arrivals.c - see arrivals.h
 *
 * Runs once a second or less. The flight recorder's answer has some 450 bytes for each
 * entry, in which the names of members are sorted: it is searched rather than parsed.
 */
#include "launcher/plugins/diagnose/arrivals.h"

#include "common/arrivals.h"
#include "common/duration.h"
#include "common/fnv.h"
#include "common/mem.h"
#include "launcher/plugins/diagnose/rank_files.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ANSWER_MS = 500, SENT = 128 };

struct source {
    struct collect_rank is;
    char *stem; /* owned */
    struct rank_trace trace;
    FILE *out; /* borrowed */
};

static void put(const struct arrivals_record *r, void *arg)
{
    const struct source *s = arg;
    struct arrivals_record of = *r;
    of.rank = (uint32_t)s->is.rank;
    fwrite(&of, sizeof of, 1, s->out);
}

/* --- libddpgroup -------------------------------------------------------------------- */

static void take_library(struct source *s)
{
    OWNED struct arrivals_file *f =
        (void *)rank_file(s->stem, "arrivals", 0, sizeof(struct arrivals_file));
    uint64_t next = f ? f->next : 0, first = next > SENT ? next - SENT : 0;
    bool known = f && f->version == ARRIVALS_VERSION && f->room == ARRIVALS;
    for (uint64_t i = first; known && i < next; i++) {
        const struct arrival_entry *e = &f->entry[i % ARRIVALS];
        if (e->number > 0)
            put(&(struct arrivals_record){e->group, e->number, e->at_ns, 0, 0}, s);
    }
}

/* --- PyTorch ------------------------------------------------------------------------ */

/* The number after `key` between `text` and `end`; 0: there is none. */
static int64_t number_after(const char *text, const char *end, const char *key)
{
    const char *at = memmem(text, (size_t)(end - text), key, strlen(key));
    return at ? strtoll(at + strlen(key), NULL, 10) : 0;
}

void arrivals_of_torch(const char *text, int64_t ahead_ns,
                       void (*fn)(const struct arrivals_record *r, void *arg), void *arg)
{
    static const char begin[] = "{\"collective_seq_id\":",
                      group[] = "\"process_group\":[\"", p2p[] = "\"is_p2p\":true";
    for (const char *at = strstr(text, begin), *end; at; at = strstr(end, begin)) {
        end = strchr(at, '}');
        if (!end)
            return;
        size_t n = (size_t)(end - at);
        int64_t number = number_after(at, end, begin),
                made = number_after(at, end, "\"time_created_ns\":");
        const char *name = memmem(at, n, group, strlen(group));
        if (!name || number <= 0 || made <= 0 || memmem(at, n, p2p, strlen(p2p)))
            continue;
        name += strlen(group);
        uint64_t id = fnv1a(FNV1A, name, strcspn(name, "\""));
        fn(&(struct arrivals_record){id, (uint64_t)number, made - ahead_ns, 0, 0}, arg);
    }
}

static void await_traces(struct source *sources, size_t n)
{
    int64_t until = now_ms() + ANSWER_MS;
    for (bool waits = true; waits && now_ms() < until;) {
        waits = false;
        usleep(300);
        for (size_t i = 0; i < n; i++)
            waits |= rank_trace_read(&sources[i].trace);
    }
}

/* --- all ---------------------------------------------------------------------------- */

void arrivals_write(const char *folder, const struct collect_rank *ranks, size_t n,
                    FILE *out)
{
    OWNED struct source *sources = xcalloc(n + 1, sizeof *sources);
    OWNED struct dirent **files = NULL;
    int nfiles = scandir(folder, &files, NULL, NULL);
    for (size_t i = 0; i < n; i++) {
        pid_t target;
        struct source *s = &sources[i];
        *s = (struct source){.is = ranks[i], .out = out};
        s->stem = rank_stem(folder, files, nfiles, s->is.rank, s->is.pid, &target);
        rank_trace_ask(&s->trace, s->stem);
    }
    await_traces(sources, n);
    int64_t ahead_ns = wall_ns() - now_ns();
    for (size_t i = 0; i < n; i++) {
        struct source *s = &sources[i];
        const char *body = rank_trace_body(&s->trace);
        if (s->trace.sock < 0 && body)
            arrivals_of_torch(body, ahead_ns, put, s);
        close_fd(&s->trace.sock);
        if (s->stem)
            take_library(s);
        free(s->stem);
        free(s->trace.answer);
    }
    for (int i = 0; i < nfiles; i++)
        free(files[i]);
}
