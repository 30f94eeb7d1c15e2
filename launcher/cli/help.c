/* launcher/cli/help.c - see help.h */
#include "launcher/cli/help.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/cli/options.h"
#include "launcher/cli/spelling.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 80, INDENT = 10 };

/* The options for most launches. */
static const struct {
    const char *names, *doc;
} usual[] = {
    {"-np N", "start N ranks; default: one per slot, or per GPU"},
    {"-H n1:4,n2:4", "hosts and their slots"},
    {"--hostfile FILE", "hosts and their slots, one per line"},
    {"--nproc-per-node N", "ranks on each host"},
    {"--nnodes N", "use the first N hosts"},
    {"-m", "the program is a Python module, as in 'python -m'"},
    {"-x NAME[=VALUE]", "pass a variable to all ranks"},
    {"--bind-to WHAT", "CPUs of a rank: none, core, numa, socket, hwthread"},
    {"--interface NAME", "network interface of the store, Gloo and NCCL"},
    {"--output-filename DIR", "write each rank's output to files, too"},
    {"--timeout TIME", "stop the job after 90, 5m, 1h30m"},
    {"--max-restarts N", "restart all ranks up to N times when one fails"},
    {"--script SCHEDULER", "print a batch script: " SCHEDULER_NAMES},
    {"--submit", "submit that script"},
    {"--preflight", "check every host, start nothing"},
    {"--dry-run", "print plan, environment and commands, start nothing"},
    {"-v, --verbose", "print decisions and their reasons"},
    {"-V, --version", "print the version"},
};

/* Write "-n, --np N" to `out`, short names first. */
static void spell(const struct option *o, char *out, size_t size)
{
    size_t n = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (const char *p = o->names; *p; p += strspn(p, " ")) {
            size_t len = strcspn(p, " ");
            if ((len == 1) == (pass == 0))
                n += (size_t)snprintf(out + n, size - n, "%s%s%.*s", n ? ", " : "",
                                      len == 1 ? "-" : "--", (int)len, p);
            p += len;
        }
    }
    if (o->arg)
        snprintf(out + n, size - n, "%s%s", strncmp(o->arg, "[=", 2) == 0 ? "" : " ",
                 o->arg);
}

/* Print `text` wrapped and indented. */
static void wrap(const char *text, FILE *out)
{
    while (*text) {
        size_t len = strlen(text), n = len;
        if (len > WIDTH - INDENT) {
            for (n = WIDTH - INDENT; n > 0 && text[n] != ' '; n--)
                ;
        }
        fprintf(out, "%*s%.*s\n", INDENT, "", (int)n, text);
        text += n;
        text += strspn(text, " ");
    }
}

static void show_option(const struct option *o, FILE *out)
{
    char names[160];
    spell(o, names, sizeof names);
    fprintf(out, "  %s\n", names);
    wrap(o->doc, out);
}

static void show_usual(FILE *out)
{
    fprintf(out, "usage: ddprun [options] program [args...]\n");
    fprintf(out, "       ddprun -np 4 train.py        4 ranks on this machine\n");
    fprintf(out, "       ddprun --hostfile hosts ./a  a rank per slot of these hosts\n");
    fputc('\n', out);
    for (size_t i = 0; i < ARRAY_LEN(usual); i++)
        fprintf(out, "  %-22s  %s\n", usual[i].names, usual[i].doc);
    fputc('\n', out);
    fprintf(out, "Topics, for --help TOPIC:\n");
    for (size_t i = 0; i < options_len; i++) {
        if (!options[i].names)
            fprintf(out, "  %-22s  %s\n", options[i].arg, options[i].doc);
    }
    fprintf(out, "  %-22s  %s\n", "all", "every option");
    fprintf(out, "  %-22s  %s\n", "OPTION", "one option, as in --help timeout");
    fputc('\n', out);
    fprintf(out,
            "Options precede the program; one dash or two, '_' or '-': both work.\n");
    fprintf(out,
            "Exit code: of the first rank that failed, 128+signal; 124 --timeout,\n");
    fprintf(
        out,
        "125 cannot start, 126 not executable, 127 not found, 2 usage. See ddprun(1).\n");
}

/* Print the options of one topic, or of all. Returns false for an unknown topic. */
static bool show_topic(const char *topic, FILE *out)
{
    bool all = strcmp(topic, "all") == 0, shown = false, in = false;
    for (size_t i = 0; i < options_len; i++) {
        const struct option *o = &options[i];
        if (!o->names) {
            in = all || strcmp(topic, o->arg) == 0;
            if (in && shown)
                fputc('\n', out);
            if (in)
                fprintf(out, "%s (%s)\n", o->doc, o->arg);
            shown |= in;
        } else if (in) {
            show_option(o, out);
        }
    }
    return shown;
}

int help_show(const char *topic, FILE *out, struct ddp_err *err)
{
    if (!topic) {
        show_usual(out);
        return 0;
    }
    if (show_topic(topic, out))
        return 0;
    const char *name = topic + strspn(topic, "-");
    for (size_t i = 0; i < options_len; i++) {
        if (spelling_is(options[i].names, name, strlen(name))) {
            show_option(&options[i], out);
            return 0;
        }
    }
    char topics[200] = "";
    for (size_t i = 0, n = 0; i < options_len && n < sizeof topics; i++) {
        if (!options[i].names)
            n += (size_t)snprintf(topics + n, sizeof topics - n, "%s, ", options[i].arg);
    }
    return err_set(err, "no help about '%.40s'; topics: %sall", topic, topics);
}
