/* launcher/plugins/diagnose/main.c - ddprun-diagnose: collects and evaluates
 *
 * Programs of their own, so that neither the agent nor the launcher waits for processes
 * that do not answer, or parses large texts in its event loop:
 *
 *     ddprun-diagnose collect FOLDER RANK:PID...   what the ranks of this node do
 *     ddprun-diagnose brief FOLDER RANK:PID...     only since when nothing has happened
 *     ddprun-diagnose calls FOLDER RANK:PID...     the collectives that they are in
 *     ddprun-diagnose last FOLDER RANK:PID...      stacks of Python ranks, as text
 *     ddprun-diagnose arrivals FOLDER RANK:PID...  when they entered collectives, binary
 *     ddprun-diagnose beside FOLDER RANK:PID...    what else runs on CPUs of the first
 *     ddprun-diagnose report FOLDER                reads the answers of all nodes
 *     ddprun-diagnose --report-on JOB              asks a running job
 *
 * The launcher runs `report`, the agent the others. Where nothing else is said they write
 * JSON on stdout; after it, `report` writes the lines for the user.
 */
#include "common/duration.h"
#include "common/err.h"
#include "common/idset.h"
#include "common/json.h"
#include "common/mem.h"
#include "launcher/control/client.h"
#include "launcher/plugins/diagnose/arrivals.h"
#include "launcher/plugins/diagnose/beside.h"
#include "launcher/plugins/diagnose/calls.h"
#include "launcher/plugins/diagnose/collect.h"
#include "launcher/plugins/diagnose/place.h"
#include "launcher/plugins/diagnose/render.h"
#include "launcher/plugins/diagnose/sockets.h"
#include "launcher/plugins/diagnose/verdict.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEADLINE_S = 20, STACKS_SHOWN = 8, FRAMES_SHOWN = 10, REPORTS_MAX = 10000 };
enum { REPORT_MS = 40000 }; /* for the answer to --report-on */
enum { EXIT_USAGE = 2 };    /* there is no such job */

/* Ranks that are about to be killed; takes `all` over. */
static json_t *write_last(json_t *all)
{
    json_auto_t *list = json_array();
    json_t *rank;
    SCOPED(idset_finish) struct idset set = {0};
    size_t i;
    json_array_foreach (all, i, rank) {
        if (!json_object_get(rank, "threads"))
            continue;
        int number = (int)int_of(rank, "rank");
        json_array_append(list, rank);
        idset_add(&set, number, number);
    }
    json_decref(all);
    if (json_array_size(list) > 0) {
        OWNED char *text = idset_text(&set);
        char host[HOST_NAME_MAX + 1] = "";
        bool one = json_array_size(list) == 1;
        gethostname(host, sizeof host - 1);
        printf("ddprun: note: rank%s %s on %s %s not ended by SIGTERM; before SIGKILL:\n",
               one ? "" : "s", text, host, one ? "has" : "have");
        render_stacks(list, STACKS_SHOWN, FRAMES_SHOWN, stdout);
    }
    return NULL;
}

static json_t *describe_beside(const char *folder, const struct collect_rank *ranks,
                               size_t n)
{
    return n > 0 ? beside(ranks, n) : NULL;
}

static json_t *write_arrivals(const char *folder, const struct collect_rank *ranks,
                              size_t n)
{
    arrivals_write(folder, ranks, n, stdout);
    return NULL;
}

static const struct part {
    const char *name;
    enum collect_part part;
    json_t *(*describe)(json_t *ranks); /* of collect(), taken over; NULL: the answer */
    json_t *(*own)(const char *folder, const struct collect_rank *ranks, size_t n);
} parts[] = {{"collect", COLLECT_ALL},           {"brief", COLLECT_CALLS, collect_idle},
             {"calls", COLLECT_CALLS, calls_of}, {"last", COLLECT_STACKS, write_last},
             {"beside", .own = describe_beside}, {"arrivals", .own = write_arrivals}};

static int collect_main(const struct part *p, const char *folder, char **argv, int n)
{
    OWNED struct collect_rank *ranks = xcalloc((size_t)n + 1, sizeof *ranks);
    for (int i = 0; i < n; i++) {
        int pid;
        if (sscanf(argv[i], "%d:%d", &ranks[i].rank, &pid) != 2)
            return 2;
        ranks[i].pid = pid;
    }
    json_auto_t *out = p->own ? p->own(folder, ranks, (size_t)n)
                              : collect(folder, ranks, (size_t)n, p->part);
    if (p->describe)
        out = p->describe(out);
    if (out)
        json_dumpf(out, stdout, JSON_COMPACT);
    return fflush(stdout) == 0 ? 0 : 1;
}

/* The first description of a rank counts: it may have exited since. */
static void add_ranks(json_t **by_rank, size_t n, const json_t *ranks, const char *host)
{
    json_t *rank;
    size_t i;
    json_array_foreach (ranks, i, rank) {
        json_int_t number = int_of(rank, "rank");
        if (number < 0 || (size_t)number >= n || by_rank[number])
            continue;
        by_rank[number] = json_incref(rank);
        if (host)
            json_object_set_new(rank, "host", json_string(host));
    }
}

/* One that neither has exited nor is described has not been started yet. */
static json_t *all_ranks(json_t *const *by_rank, size_t n, const json_t *timed_out)
{
    json_t *ranks = json_array();
    const json_t *one;
    size_t i;
    for (i = 0; i < n; i++) {
        json_t *none = by_rank[i] ? NULL
                                  : json_pack("{s:I, s:s}", "rank", (json_int_t)i,
                                              "unknown", "not started yet");
        json_array_append_new(ranks, none ? none : by_rank[i]);
    }
    json_array_foreach (timed_out, i, one)
        json_object_set_new(json_array_get(ranks, (size_t)json_integer_value(one)),
                            "timed_out", json_true());
    return ranks;
}

/* stdin: a line {"job", "reason", "nranks", "ranks": [...], "timed_out": [0, 2], ...}:
 * the ranks that no node describes; then for each node a line with its host, and a line
 * with its answer. Its "ranks" become those of the whole job, in order. */
static json_t *read_answers(void)
{
    OWNED char *line = NULL;
    OWNED json_t **by_rank = NULL;
    char host[300] = "";
    size_t room = 0, number = 0, nranks = 0;
    ssize_t n;
    json_t *report = NULL;
    while ((n = getline(&line, &room, stdin)) > 0) {
        line[n - 1] = line[n - 1] == '\n' ? '\0' : line[n - 1];
        if (number++ == 0) {
            report = json_loads(line, 0, NULL);
            nranks = (size_t)int_of(report, "nranks");
            by_rank = xcalloc(nranks + 1, sizeof(json_t *));
            add_ranks(by_rank, nranks, json_object_get(report, "ranks"), NULL);
        } else if (number % 2 == 0) {
            snprintf(host, sizeof host, "%s", line);
        } else {
            json_auto_t *ranks = json_loads(line, 0, NULL);
            add_ranks(by_rank, nranks, ranks, host);
        }
    }
    if (report)
        json_object_set_new(
            report, "ranks",
            all_ranks(by_rank, nranks, json_object_get(report, "timed_out")));
    return report;
}

static FILE *open_file(const char *folder, const char *name)
{
    OWNED char *path = xasprintf("%s/%s", folder, name);
    return fopen(path, "wx");
}

static void print_labelled(const json_t *sentences, const char *label, FILE *f)
{
    const json_t *sentence;
    size_t i;
    json_array_foreach (sentences, i, sentence)
        fprintf(f, "ddprun: %s: %s\n", label, json_string_value(sentence));
}

/* The verdict, and which processes of ddprun did not run: a rank may have waited for it.
 */
static void print_sentences(const json_t *report, FILE *f)
{
    const json_t *found = json_object_get(report, "verdict");
    print_labelled(json_object_get(found, "sentences"),
                   is_text(found, "kind", "none") ? "note" : "hang", f);
    print_labelled(json_object_get(json_object_get(report, "late"), "sentences"), "note",
                   f);
    print_labelled(json_object_get(report, "network"), "note", f);
}

/* "FOLDER", "FOLDER-2", ...: the first that does not exist; made. NULL with errno. */
static char *make_folder(const char *folder)
{
    for (int i = 1; i <= REPORTS_MAX; i++) {
        char *name = i == 1 ? xstrdup(folder) : xasprintf("%s-%d", folder, i);
        if (mkdir(name, 0700) == 0)
            return name;
        free(name);
        if (errno != EEXIST)
            break;
    }
    return NULL;
}

/* 0, or -1 with errno. */
static int write_report(const char *folder, const json_t *report, const json_t *ranks)
{
    FILE *text = open_file(folder, "report.txt");
    FILE *json = open_file(folder, "report.json");
    int rc = text && json ? 0 : -1;
    if (rc == 0) {
        print_sentences(report, text);
        render_stacks(ranks, SIZE_MAX, 0, text);
        render_ranks(ranks, text);
        rc = json_dumpf(report, json, JSON_INDENT(1));
    }
    if (text && fclose(text) != 0)
        rc = -1;
    if (json && fclose(json) != 0)
        rc = -1;
    return rc;
}

/* What plug-ins know of waits: after what the ranks' answers tell, or in its place if
 * they tell nothing. */
static void add_waits(json_t *found, const json_t *waits)
{
    json_t *sentences = json_object_get(found, "sentences"), *wait, *ranks = NULL;
    bool none = is_text(found, "kind", "none");
    size_t i;
    json_array_foreach (waits, i, wait) {
        if (none && i == 0)
            json_array_clear(sentences);
        json_array_append(sentences, json_object_get(wait, "text"));
        ranks = ranks ? ranks : json_object_get(wait, "ranks");
    }
    if (!none || i == 0)
        return;
    json_object_set_new(found, "kind", json_string("absent"));
    json_object_set(found, "ranks", ranks);
}

static int report_main(const char *folder)
{
    json_auto_t *report = read_answers();
    if (!report)
        return 2;
    json_t *ranks = json_object_get(report, "ranks"), *found = verdict(ranks);
    sockets_match(ranks);
    add_waits(found, json_object_get(report, "waits"));
    json_t *lost = sockets_lost(ranks);
    bool idle = is_text(report, "reason", "timeout") && is_text(found, "kind", "none") &&
                json_array_size(lost) == 0;
    json_object_set_new(report, "network", lost);
    json_object_set_new(report, "version", json_integer(1));
    json_object_set(report, "verdict", found);
    json_dumpf(found, stdout, JSON_COMPACT);
    putchar('\n');
    if (!idle) { /* otherwise it just took too long */
        print_sentences(report, stdout);
        render_stacks(ranks, STACKS_SHOWN, FRAMES_SHOWN, stdout);
        OWNED char *made = make_folder(folder);
        if (made && write_report(made, report, ranks) == 0)
            printf("ddprun: note: the whole report is in '%s'\n", made);
        else
            printf("ddprun: warning: cannot write a report to '%s': %s\n",
                   made ? made : folder, strerror(errno));
    }
    json_decref(found);
    return fflush(stdout) == 0 ? 0 : 1;
}

/* Ask a running job of ours for a report and print it. */
static int ask_report(int fd, struct ddp_err *err)
{
    json_auto_t *request = json_pack("{s:s}", "do", "report");
    json_auto_t *answer = control_ask(fd, request, now_ms() + REPORT_MS, err);
    if (!answer)
        return -1;
    const char *text = text_of(answer, "text");
    return !text || fputs(text, stdout) < 0 || fflush(stdout) != 0
               ? err_errno(err, "cannot write the report")
               : 0;
}

/* Executed in place of ddprun. */
static int report_on(const char *job)
{
    struct ddp_err err;
    SCOPED(close_fd) int fd = control_connect(job, &err);
    int code = fd < 0 ? EXIT_USAGE : ask_report(fd, &err) < 0 ? 1 : 0;
    if (code != 0)
        fprintf(stderr, "ddprun: %s\n", err.text);
    return code;
}

int main(int argc, char **argv)
{
    bool part = argc >= 3 && argv[1][0] != '-';
    if (part) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(DEADLINE_S); /* the last resort: the caller has given up by then */
    }
    for (size_t i = 0; part && i < ARRAY_LEN(parts); i++) {
        if (strcmp(argv[1], parts[i].name) == 0)
            return collect_main(&parts[i], argv[2], argv + 3, argc - 3);
    }
    if (argc == 3 && strcmp(argv[1], "report") == 0)
        return report_main(argv[2]);
    if (argc == 3 && strcmp(argv[1], "--report-on") == 0)
        return report_on(argv[2]);
    fprintf(stderr, "ddprun: ddprun runs this program\n");
    return EXIT_USAGE;
}
