/* launcher/cli/readers.c - see readers.h */
#include "launcher/cli/readers.h"

#include "common/affinity.h"
#include "common/duration.h"
#include "common/err.h"
#include "common/idset.h"
#include "common/mem.h"
#include "common/number.h"
#include "common/utf8.h"
#include "launcher/cli/foreign.h"
#include "launcher/cli/spelling.h"
#include "launcher/cli/walltime.h"

#include <ctype.h>
#include <fcntl.h>
#include <limits.h>
#include <regex.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *field(struct opts *opts, const struct option *o)
{
    return (char *)opts + o->at;
}

/* A text that is cut out of a value. */
static const char *keep(struct opts *opts, char *text)
{
    strv_push_nodup(&opts->texts, text);
    return text;
}

int read_number(const struct option *o, const char *name, const char *text,
                struct opts *opts, struct ddp_err *err)
{
    if (!number_whole(text, o->min, o->max, field(opts, o)))
        return err_set(err, "%s takes a whole number from %d to %d, not '%.80s'", name,
                       o->min, o->max, text);
    return 0;
}

/* torchrun's auto and gpu mean one rank per GPU, which is our default; cpu one per CPU.
 */
int read_per_node(const struct option *o, const char *name, const char *text,
                  struct opts *opts, struct ddp_err *err)
{
    bool cpus = strcmp(text, "cpu") == 0;
    opts->per_cpu = cpus;
    opts->per_gpu = strcmp(text, "gpu") == 0;
    if (!cpus && strcmp(text, "auto") != 0 && !opts->per_gpu)
        return read_number(o, name, text, opts, err);
    opts->per_node = cpus ? affinity_cpus_here() : 0;
    return 0;
}

/* N, or torchrun's MIN:MAX. */
int read_nnodes(const struct option *o, const char *name, const char *text,
                struct opts *opts, struct ddp_err *err)
{
    const char *colon = strchr(text, ':');
    opts->min_nnodes = 0;
    TRY(read_number(o, name, colon ? colon + 1 : text, opts, err));
    char *end;
    long min = colon ? strtol(text, &end, 10) : 0;
    if (colon && (end != colon || min < 1 || min > opts->nnodes))
        return err_set(err, "%s takes N, or MIN:MAX hosts, not '%.80s'", name, text);
    opts->min_nnodes = min < opts->nnodes ? (int)min : 0;
    return 0;
}

/* In the schedulers' notation, with days and colons. */
int read_walltime(const struct option *o, const char *name, const char *text,
                  struct opts *opts, struct ddp_err *err)
{
    return walltime_parse(text, &opts->walltime_s, err) < 0 ? err_prefix(err, "%s", name)
                                                            : 0;
}

int read_memory(const struct option *o, const char *name, const char *text,
                struct opts *opts, struct ddp_err *err)
{
    return memory_parse(text, &opts->memory_mb, err) < 0 ? err_prefix(err, "%s", name)
                                                         : 0;
}

/* Unquoted words of the batch script: no quotes, nothing that the shell expands. */
int read_requeue(const struct option *o, const char *name, const char *text,
                 struct opts *opts, struct ddp_err *err)
{
    opts->requeue = strcmp(text, "on") == 0 ? "--resume" : text;
    if (strpbrk(text, "\"'\\`$;&|<>(){}[]*?!#~\n") || !*text)
        return err_set(err, "%s takes plain words for the program, not '%.80s'", name,
                       text);
    return 0;
}

int read_plain(const struct option *o, const char *name, const char *text,
               struct opts *opts, struct ddp_err *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789_-.+@:/,";
    const char *blanks = o->at == offsetof(struct opts, modules) ? " " : "";
    for (const char *p = text; *p; p++) {
        if (!strchr(allowed, *p) && !strchr(blanks, *p))
            return err_set(err, "%s '%.80s': '%.*s' cannot be in it", name, text,
                           utf8_bytes(p), p);
    }
    *(const char **)field(opts, o) = text;
    return *text ? 0 : err_set(err, "%s: an empty %s", name, o->arg);
}

int read_text(const struct option *o, const char *name, const char *text,
              struct opts *opts, struct ddp_err *err)
{
    if (!*text)
        return err_set(err, "%s: an empty %s", name, o->arg);
    *(const char **)field(opts, o) = text;
    return 0;
}

int read_command(const struct option *o, const char *name, const char *text,
                 struct opts *opts, struct ddp_err *err)
{
    return read_text(o, name, text + strspn(text, " \t"), opts, err);
}

int read_url(const struct option *o, const char *name, const char *text,
             struct opts *opts, struct ddp_err *err)
{
    if (!strstr(text, "://"))
        return err_set(err,
                       "%s takes a URL such as https://... or file:///..., not "
                       "'%.80s'",
                       name, text);
    return read_text(o, name, text, opts, err);
}

int read_flag(const struct option *o, const char *name, const char *text,
              struct opts *opts, struct ddp_err *err)
{
    *(bool *)field(opts, o) = true;
    return 0;
}

int read_span(const struct option *o, const char *name, const char *text,
              struct opts *opts, struct ddp_err *err)
{
    int64_t ms;
    if (duration_parse(text, &ms, err) < 0)
        return err_prefix(err, "%s", name);
    if (ms < o->min)
        return err_set(err, "%s is at least %g s, not '%s'", name, o->min / 1e3, text);
    *(int64_t *)field(opts, o) = ms;
    return 0;
}

/* "a, b or c", for error messages. */
static void list_words(const struct word *w, char *out, size_t size)
{
    size_t n = 0;
    for (; w->text && n < size; w++) {
        const char *glue = n == 0 ? "" : w[1].text ? ", " : " or ";
        n += (size_t)snprintf(out + n, size - n, "%s%s", glue, w->text);
    }
}

int read_choice(const struct option *o, const char *name, const char *text,
                struct opts *opts, struct ddp_err *err)
{
    char all[200];
    for (const struct word *w = o->words; w->text; w++) {
        if (strcmp(w->text, text) == 0) {
            *(int *)field(opts, o) = w->value;
            return 0;
        }
    }
    list_words(o->words, all, sizeof all);
    return err_set(err, "%s is %s, not '%.80s'", name, all, text);
}

/* Take what mpirun allows behind a policy, ":PE=4,OVERSUBSCRIBE", into `opts`. CPUs are
 * bound by --bind-to, and each rank has its share of them. */
static int read_modifiers(const char *name, const char *text, struct opts *opts,
                          struct ddp_err *err)
{
    static const char none[] = "hwtcpus corecpus inherit noinherit nooversubscribe "
                               "if-supported overload-allowed no-overload report";
    for (const char *p = text; *p; p += strcspn(p, ":,")) {
        char word[32] = "";
        size_t n = strcspn(++p, ":,");
        for (size_t i = 0; i < n && i < sizeof word - 1; i++)
            word[i] = (char)tolower((unsigned char)p[i]);
        if (strcmp(word, "oversubscribe") == 0)
            opts->oversubscribe = true;
        else if (strncmp(word, "pe=", 3) == 0 || spelling_is(none, word, n) ||
                 strspn(word, "0123456789") == n)
            strv_pushf(&opts->ignored, "%s:%.*s", name, (int)n, p);
        else
            return err_set(err, "%s: ':%.*s' has nothing like it here, leave it out",
                           name, (int)n, p);
    }
    return 0;
}

int read_map_by(const struct option *o, const char *name, const char *text,
                struct opts *opts, struct ddp_err *err)
{
    /* on one host they differ in the order of CPUs only, which --bind-to chooses */
    static const char within[] = "core hwthread socket package numa l1cache l2cache "
                                 "l3cache board";
    size_t len = strcspn(text, ":");
    if (strncmp(text, "ppr:", 4) != 0 && text[len]) {
        TRY(read_modifiers(name, text + len, opts, err));
        text = keep(opts, xstrndup(text, len));
        if (len == 0) /* ":OVERSUBSCRIBE" */
            return 0;
    }
    if (spelling_is(within, text, strlen(text)))
        text = "block";
    int n, used = 0;
    if (sscanf(text, "ppr:%7d:node%n", &n, &used) == 1 && used && n > 0 &&
        (!text[used] || text[used] == ':')) {
        opts->map_by = MAP_PPR;
        opts->ppr = n;
        return read_modifiers(name, text + used, opts, err);
    }
    if (strncmp(text, "ppr:", 4) == 0)
        return err_set(err, "%s '%.80s': only ppr:N:node is known, N from 1", name, text);
    return read_choice(o, name, text, opts, err);
}

int read_bind_to(const struct option *o, const char *name, const char *text,
                 struct opts *opts, struct ddp_err *err)
{
    static const struct {
        const char *names, *ours; /* the smallest of ours that holds it */
    } levels[] = {
        {"package board", "socket"}, {"l3cache", "numa"}, {"l1cache l2cache", "core"}};
    enum bind_to one_gpu = opts->bind_to & BIND_ONE_GPU;
    size_t len = strcspn(text, ":");
    TRY(read_modifiers(name, text + len, opts, err));
    text = keep(opts, xstrndup(text, len));
    for (size_t i = 0; i < ARRAY_LEN(levels); i++) {
        if (spelling_is(levels[i].names, text, len))
            text = levels[i].ours;
    }
    int rc = read_choice(o, name, text, opts, err);
    opts->bind_to |= one_gpu;
    return rc;
}

int read_one_gpu(const struct option *o, const char *name, const char *text,
                 struct opts *opts, struct ddp_err *err)
{
    opts->bind_to |= BIND_ONE_GPU;
    return 0;
}

int read_export(const struct option *o, const char *name, const char *text,
                struct opts *opts, struct ddp_err *err)
{
    if (!*text || *text == '=')
        return err_set(err, "%s takes NAME or NAME=value, not '%.80s'", name, text);
    strv_push(&opts->export_env, text);
    return 0;
}

int read_rank_names(const struct option *o, const char *name, const char *text,
                    struct opts *opts, struct ddp_err *err)
{
    unsigned names = 0;
    for (const char *p = text;; p++) {
        size_t len = strcspn(p, ",");
        const struct word *w = o->words;
        while (w->text && (strlen(w->text) != len || memcmp(w->text, p, len) != 0))
            w++;
        if (!w->text)
            return err_set(err,
                           "%s is all, none, or a list of ompi, slurm, pmi, tf, dmlc and "
                           "paddle, not '%.80s'",
                           name, text);
        names |= (unsigned)w->value;
        p += len;
        if (!*p)
            break;
    }
    opts->rank_names = names;
    return 0;
}

int read_hosts(const struct option *o, const char *name, const char *text,
               struct opts *opts, struct ddp_err *err)
{
    if (opts->hosts_by)
        return err_set(err, "%s and %s choose the same; use -H", name, opts->hosts_by);
    return read_text(o, name, text, opts, err);
}

/* DeepSpeed's: hosts between '@', each with the GPUs to use, which is not supported; and
 * srun's: n[1,3],n7. */
int read_include(const struct option *o, const char *name, const char *text,
                 struct opts *opts, struct ddp_err *err)
{
    bool exclude = strcmp(o->names, "exclude") == 0;
    char *list = NULL;
    for (const char *h = text, *end; *h; h = end + (*end != '\0')) {
        end = h;
        for (bool range = false; *end && *end != '@' && (range || *end != ','); end++)
            range = *end == '[' || (range && *end != ']');
        xappendf(&list, "%s%s%.*s", list ? "," : "", exclude ? "^" : "", (int)(end - h),
                 h);
    }
    const char *gpus = strchr(text, ':');
    if (list && !gpus && !opts->hosts) {
        opts->hosts = keep(opts, list);
        opts->hosts_by = exclude ? "--exclude" : "--include";
        return 0;
    }
    free(list);
    if (gpus && !exclude && !gpus[1 + strspn(gpus + 1, "0123456789,")]) {
        int n = 1;
        for (const char *c = gpus; *c; c++)
            n += *c == ',';
        return err_set(err,
                       "%s '%.80s' names GPUs: use %s %.*s -x CUDA_VISIBLE_DEVICES=%s "
                       "--nproc-per-node %d",
                       name, text, name, (int)(gpus - text), text, gpus + 1, n);
    }
    if (gpus)
        return err_set(err, "%s '%.80s' names GPUs: name hosts only, and " FOREIGN_GPUS,
                       name, text);
    return opts->hosts ? err_set(err, "%s and %s choose the same; use -H", name,
                                 opts_hosts_by(opts))
                       : err_set(err, "%s takes hosts, as in h1@h2", name);
}

/* cli.c takes it where it is the first word. */
int read_as_late(const struct option *o, const char *name, const char *text,
                 struct opts *opts, struct ddp_err *err)
{
    return err_set(err, "%s must be the first option", name);
}

int read_modules(const struct option *o, const char *name, const char *text,
                 struct opts *opts, struct ddp_err *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,";
    if (text[strspn(text, allowed)] || strchr(",.", text[0]) || strstr(text, ",,"))
        return err_set(err, "%s takes Python modules such as torch,numpy, not '%.80s'",
                       name, text);
    return read_text(o, name, text, opts, err);
}

int read_no_preload(const struct option *o, const char *name, const char *text,
                    struct opts *opts, struct ddp_err *err)
{
    opts->preload = NULL;
    return 0;
}

int read_no_pty(const struct option *o, const char *name, const char *text,
                struct opts *opts, struct ddp_err *err)
{
    opts->pty = PTY_OFF;
    return 0;
}

int read_ranks(const struct option *o, const char *name, const char *text,
               struct opts *opts, struct ddp_err *err)
{
    SCOPED(idset_finish) struct idset set = {0};
    if (idset_parse(text, &set, err) < 0)
        return err_prefix(err, "%s", name);
    return read_text(o, name, text, opts, err);
}

/* "host", "host:port", "[v6]:port"; a bare IPv6 address has more than one colon. */
int read_master(const struct option *o, const char *name, const char *text,
                struct opts *opts, struct ddp_err *err)
{
    const char *host = text, *colon = strchr(text, ':');
    size_t len = strlen(text);
    int port = 0;
    if (text[0] == '[') {
        host++;
        len = strcspn(host, "]");
        colon = host[len] ? host + len + 1 : NULL;
        if (!colon || (*colon && *colon != ':'))
            return err_set(err, "%s '%.80s': [address]:port is the form", name, text);
        colon = *colon ? colon : NULL;
    } else if (colon && strchr(colon + 1, ':')) {
        colon = NULL;
    } else if (colon) {
        len = (size_t)(colon - text);
    }
    /* torchrun's pages have localhost:0 for one node: any free port */
    int least =
        len == strlen("localhost") && strncmp(host, "localhost", len) == 0 ? 0 : 1;
    if (len == 0 || (colon && !number_whole(colon + 1, least, 65535, &port)))
        return err_set(err, "%s takes an address, or address:port, not '%.80s'", name,
                       text);
    opts->master_addr = keep(opts, xstrndup(host, len));
    opts->addr_port = port;
    return 0;
}

int read_hang_after(const struct option *o, const char *name, const char *text,
                    struct opts *opts, struct ddp_err *err)
{
    if (strcmp(text, "off") != 0)
        return read_span(o, name, text, opts, err);
    opts->hang_after_ms = 0;
    return 0;
}

/* The descriptor is looked at now, before ddprun opens any of its own. */
int read_events(const struct option *o, const char *name, const char *text,
                struct opts *opts, struct ddp_err *err)
{
    int fd = -1;
    bool number = strncmp(text, "fd:", 3) == 0;
    if (number && !number_whole(text + 3, 0, INT_MAX, &fd))
        return err_set(err, "%s fd:N takes the number of a descriptor, not '%.40s'", name,
                       text + 3);
    int flags = number ? fcntl(fd, F_GETFL) : O_WRONLY;
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
        return err_set(err, "%s: descriptor %d is not open for writing", name, fd);
    return read_text(o, name, text, opts, err);
}

int read_stragglers(const struct option *o, const char *name, const char *text,
                    struct opts *opts, struct ddp_err *err)
{
    bool bare = strcmp(text, "on") == 0; /* without a value */
    opts->stragglers = 10;
    if (!bare && !number_whole(text, 1, 99, &opts->stragglers))
        return err_set(err, "%s takes a percentage from 1 to 99, not '%.40s'", name,
                       text);
    return 0;
}

int read_ui(const struct option *o, const char *name, const char *text, struct opts *opts,
            struct ddp_err *err)
{
    opts->ui = strcmp(text, "on") == 0 ? "0" : text; /* "on": without a value */
    return *opts->ui ? 0 : err_set(err, "%s: an empty ADDRESS", name);
}

/* A file's name that begins with '-' is a mistyped number or a forgotten argument. */
int read_metrics(const struct option *o, const char *name, const char *text,
                 struct opts *opts, struct ddp_err *err)
{
    if (text[0] == '-')
        return err_set(err, "%s takes ADDRESS:PORT, PORT or a FILE, not '%.80s'", name,
                       text);
    return read_text(o, name, text, opts, err);
}

int read_regex(const struct option *o, const char *name, const char *text,
               struct opts *opts, struct ddp_err *err)
{
    regex_t compiled;
    char why[160];
    int rc = regcomp(&compiled, text, REG_EXTENDED | REG_NOSUB);
    if (rc != 0) {
        regerror(rc, &compiled, why, sizeof why);
        return err_set(err, "%s '%.80s': %s", name, text, why);
    }
    regfree(&compiled);
    return read_text(o, name, text, opts, err);
}
