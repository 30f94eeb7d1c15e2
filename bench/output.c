/* bench/output.c - CPU time of the launcher's output path: lines per second
 *
 * 64 ranks, one million lines of 60 bytes, in pieces as a pipe gives them (64 KiB) and
 * line by line, with and without tags and times. Stdout should be /dev/null or a pipe;
 * the table goes to stderr.
 */
#include "launcher/io/output.h"
#include "common/duration.h"
#include "common/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RANKS = 64, LINES = 1000000, LINE = 60 };

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void on_room(void *arg) {}

static void on_failed(const char *why, void *arg) {}

static const char *no_host(int rank, void *arg)
{
    return NULL;
}

static int measure(const char *name, const struct opts *opts, size_t piece)
{
    static const struct output_events events = {on_room, on_room, on_failed};
    static const struct output_hosts hosts = {no_host, no_host};
    struct ddp_err err = {""};
    struct loop *loop = loop_create(&err);
    struct output *o =
        loop ? output_create(loop, opts, RANKS, &hosts, &events, NULL, &err) : NULL;
    if (!o) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    char *text = xcalloc(1, piece);
    for (size_t i = 0; i < piece; i++)
        text[i] = i % LINE == LINE - 1 ? '\n' : (char)('a' + i % 26);
    double start = cpu_s();
    size_t total = (size_t)LINES * LINE;
    int rank = 0;
    for (size_t fed = 0; fed < total; fed += piece, rank = (rank + 1) % RANKS) {
        output_feed(o, rank, OUT_STDOUT, text, piece);
        if (rank == RANKS - 1)
            event_base_loop(loop_base(loop), EVLOOP_NONBLOCK);
        if (output_room(o) == 0)
            output_flush(o, now_ms() + 60000);
    }
    int rc = output_flush(o, now_ms() + 60000);
    double s = cpu_s() - start;
    fprintf(stderr, "%-28s %6.2f M lines/s of CPU, %6.0f MB/s\n", name, LINES / s / 1e6,
            (double)total / s / 1e6);
    free(text);
    output_destroy(o);
    loop_destroy(loop);
    return rc < 0;
}

int main(void)
{
    struct opts off = {.tag_output = TAG_OFF}, on = {.tag_output = TAG_ON};
    struct opts times = {.tag_output = TAG_ON, .timestamp_output = true};
    size_t big = 65536 / LINE * LINE;
    return measure("untagged, 64 KiB pieces", &off, big) +
           measure("tagged, 64 KiB pieces", &on, big) +
           measure("tagged, 4 KiB, torn lines", &on, 4096) +
           measure("tagged, line by line", &on, LINE) +
           measure("tagged, timed, 64 KiB", &times, big);
}
