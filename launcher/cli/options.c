/* launcher/cli/options.c - see options.h */
#include "launcher/cli/options.h"
#include "launcher/cli/walltime.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/idset.h"
#include "common/mem.h"
#include "launcher/cli/spelling.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <regex.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 10000000

/* --- readers ------------------------------------------------------------------------ */

static void *field(struct opts *opts, const struct option *o)
{
    return (char *)opts + o->at;
}

static int read_number(const struct option *o, const char *name, const char *text,
                       struct opts *opts, struct ddp_err *err)
{
    char *end;
    errno = 0;
    long n = strtol(text, &end, 10);
    if (end == text || *end || errno || n < o->min || n > o->max)
        return err_set(err, "%s takes a whole number from %ld to %ld, not '%.80s'", name,
                       o->min, o->max, text);
    *(int *)field(opts, o) = (int)n;
    return 0;
}

/* torchrun's auto and gpu mean one rank per GPU, which is our default; cpu one per CPU.
 */
static int read_per_node(const struct option *o, const char *name, const char *text,
                         struct opts *opts, struct ddp_err *err)
{
    cpu_set_t own;
    bool cpus = strcmp(text, "cpu") == 0 && sched_getaffinity(0, sizeof own, &own) == 0;
    if (!cpus && strcmp(text, "auto") != 0 && strcmp(text, "gpu") != 0)
        return read_number(o, name, text, opts, err);
    opts->per_node = cpus ? CPU_COUNT(&own) : 0;
    return 0;
}

/* N, or torchrun's MIN:MAX. */
static int read_nnodes(const struct option *o, const char *name, const char *text,
                       struct opts *opts, struct ddp_err *err)
{
    const char *colon = strchr(text, ':');
    opts->min_nnodes = 0;
    if (read_number(o, name, colon ? colon + 1 : text, opts, err) < 0)
        return -1;
    char *end;
    long min = colon ? strtol(text, &end, 10) : 0;
    if (colon && (end != colon || min < 1 || min > opts->nnodes))
        return err_set(err, "%s takes N, or MIN:MAX hosts, not '%.80s'", name, text);
    opts->min_nnodes = min < opts->nnodes ? (int)min : 0;
    return 0;
}

/* In the schedulers' notation, with days and colons. */
static int read_walltime(const struct option *o, const char *name, const char *text,
                         struct opts *opts, struct ddp_err *err)
{
    return walltime_parse(text, &opts->walltime_s, err) < 0 ? err_prefix(err, "%s", name)
                                                            : 0;
}

static int read_memory(const struct option *o, const char *name, const char *text,
                       struct opts *opts, struct ddp_err *err)
{
    return memory_parse(text, &opts->memory_mb, err) < 0 ? err_prefix(err, "%s", name)
                                                         : 0;
}

/* Unquoted words of the batch script: no quotes, nothing that the shell expands. */
static int read_requeue(const struct option *o, const char *name, const char *text,
                        struct opts *opts, struct ddp_err *err)
{
    opts->requeue = strcmp(text, "on") == 0 ? "--resume" : text;
    if (strpbrk(text, "\"'\\`$;&|<>(){}*?!#\n") || !*text)
        return err_set(err, "%s takes plain words for the program, not '%.80s'", name,
                       text);
    return 0;
}

static int read_plain(const struct option *o, const char *name, const char *text,
                      struct opts *opts, struct ddp_err *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                  "0123456789_-.+@:/,";
    const char *blanks = o->at == offsetof(struct opts, modules) ? " " : "";
    for (const char *p = text; *p; p++) {
        if (!strchr(allowed, *p) && !strchr(blanks, *p))
            return err_set(err, "%s '%.80s': '%c' cannot be in it", name, text, *p);
    }
    *(const char **)field(opts, o) = text;
    return *text ? 0 : err_set(err, "%s: an empty %s", name, o->arg);
}

static int read_text(const struct option *o, const char *name, const char *text,
                     struct opts *opts, struct ddp_err *err)
{
    if (!*text)
        return err_set(err, "%s: an empty %s", name, o->arg);
    *(const char **)field(opts, o) = text;
    return 0;
}

static int read_url(const struct option *o, const char *name, const char *text,
                    struct opts *opts, struct ddp_err *err)
{
    if (!strstr(text, "://"))
        return err_set(err,
                       "%s takes a URL such as https://... or file:///..., not "
                       "'%.80s'",
                       name, text);
    return read_text(o, name, text, opts, err);
}

static int read_flag(const struct option *o, const char *name, const char *text,
                     struct opts *opts, struct ddp_err *err)
{
    *(bool *)field(opts, o) = true;
    return 0;
}

static int read_span(const struct option *o, const char *name, const char *text,
                     struct opts *opts, struct ddp_err *err)
{
    int64_t ms;
    if (duration_parse(text, &ms, err) < 0)
        return err_prefix(err, "%s", name);
    if (ms < o->min)
        return err_set(err, "%s '%s' is too short", name, text);
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

static int read_choice(const struct option *o, const char *name, const char *text,
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

/* Take what mpirun allows behind a policy, ":PE=4:OVERSUBSCRIBE", into `opts`. CPUs are
 * bound by --bind-to, and each rank has its share of them. */
static int read_modifiers(const char *name, const char *text, struct opts *opts,
                          struct ddp_err *err)
{
    static const char none[] = "hwtcpus corecpus inherit noinherit nooversubscribe "
                               "if-supported overload-allowed no-overload report";
    for (const char *p = text; *p == ':'; p += strcspn(p, ":")) {
        char word[32] = "";
        size_t n = strcspn(++p, ":");
        for (size_t i = 0; i < n && i < sizeof word - 1; i++)
            word[i] = (char)tolower((unsigned char)p[i]);
        if (strcmp(word, "oversubscribe") == 0)
            opts->oversubscribe = true;
        else if (strncmp(word, "pe=", 3) == 0 || spelling_is(none, word, n) ||
                 strspn(word, "0123456789") == n)
            strv_pushf(&opts->ignored, "%s:%.*s", name, (int)n, p);
        else
            return err_set(err, "%s: ':%.*s' is unknown here", name, (int)n, p);
    }
    return 0;
}

static int read_map_by(const struct option *o, const char *name, const char *text,
                       struct opts *opts, struct ddp_err *err)
{
    /* on one host they differ in the order of CPUs only, which --bind-to chooses */
    static const char within[] = "core hwthread socket package numa l1cache l2cache "
                                 "l3cache board";
    size_t len = strcspn(text, ":");
    if (strncmp(text, "ppr:", 4) != 0 && text[len]) {
        strv_push_nodup(&opts->texts, xstrndup(text, len));
        if (read_modifiers(name, text + len, opts, err) < 0)
            return -1;
        text = opts->texts.v[opts->texts.n - 1];
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

static int read_bind_to(const struct option *o, const char *name, const char *text,
                        struct opts *opts, struct ddp_err *err)
{
    enum bind_to one_gpu = opts->bind_to & BIND_ONE_GPU;
    size_t len = strcspn(text, ":");
    strv_push_nodup(&opts->texts, xstrndup(text, len));
    if (read_modifiers(name, text + len, opts, err) < 0)
        return -1;
    text = opts->texts.v[opts->texts.n - 1];
    int rc = read_choice(o, name, strcmp(text, "package") ? text : "socket", opts, err);
    opts->bind_to |= one_gpu;
    return rc;
}

static int read_one_gpu(const struct option *o, const char *name, const char *text,
                        struct opts *opts, struct ddp_err *err)
{
    opts->bind_to |= BIND_ONE_GPU;
    return 0;
}

static int read_export(const struct option *o, const char *name, const char *text,
                       struct opts *opts, struct ddp_err *err)
{
    if (!*text || *text == '=')
        return err_set(err, "%s takes NAME or NAME=value, not '%.80s'", name, text);
    strv_push(&opts->export_env, text);
    return 0;
}

static int read_rank_names(const struct option *o, const char *name, const char *text,
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
                           "%s is all, none, or a list of ompi, slurm, pmi, tf and dmlc, "
                           "not '%.80s'",
                           name, text);
        names |= (unsigned)w->value;
        p += len;
        if (!*p)
            break;
    }
    opts->rank_names = names;
    return 0;
}

/* DeepSpeed's: hosts between '@', each with the GPUs to use, which is not supported. */
static int read_include(const struct option *o, const char *name, const char *text,
                        struct opts *opts, struct ddp_err *err)
{
    bool exclude = strcmp(o->names, "exclude") == 0;
    char *copy = xstrdup(text), *list = NULL, *rest;
    for (char *h = strtok_r(copy, "@", &rest); h; h = strtok_r(NULL, "@", &rest)) {
        char *more = xasprintf("%s%s%s%s", list ? list : "", list ? "," : "",
                               exclude ? "^" : "", h);
        free(list);
        list = more;
    }
    bool gpus = strchr(text, ':') != NULL;
    free(copy);
    if (!list || gpus || opts->hosts) {
        free(list);
        return gpus          ? err_set(err,
                                       "%s '%.80s': choose hosts only, and GPUs by "
                                                "CUDA_VISIBLE_DEVICES and slots",
                                       name, text)
               : opts->hosts ? err_set(err, "%s and -H choose the same; use -H", name)
                             : err_set(err, "%s takes hosts, as in h1@h2", name);
    }
    strv_push_nodup(&opts->texts, list);
    opts->hosts = list;
    return 0;
}

/* cli.c takes it where it is the first word. */
static int read_as_late(const struct option *o, const char *name, const char *text,
                        struct opts *opts, struct ddp_err *err)
{
    return err_set(err, "%s must be the first option", name);
}

static int read_modules(const struct option *o, const char *name, const char *text,
                        struct opts *opts, struct ddp_err *err)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz"
                                  "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,";
    if (text[strspn(text, allowed)] || strchr(",.", text[0]) || strstr(text, ",,"))
        return err_set(err, "%s takes Python modules such as torch,numpy, not '%.80s'",
                       name, text);
    return read_text(o, name, text, opts, err);
}

static int read_no_preload(const struct option *o, const char *name, const char *text,
                           struct opts *opts, struct ddp_err *err)
{
    opts->preload = NULL;
    return 0;
}

static int read_ranks(const struct option *o, const char *name, const char *text,
                      struct opts *opts, struct ddp_err *err)
{
    struct idset set = {0};
    int rc = idset_parse(text, &set, err);
    idset_finish(&set);
    if (rc < 0)
        return err_prefix(err, "%s", name);
    return read_text(o, name, text, opts, err);
}

/* "host", "host:port", "[v6]:port"; a bare IPv6 address has more than one colon. */
static int read_master(const struct option *o, const char *name, const char *text,
                       struct opts *opts, struct ddp_err *err)
{
    const char *host = text, *colon = strchr(text, ':');
    size_t len = strlen(text);
    char *end = NULL;
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
    long port = colon ? strtol(colon + 1, &end, 10) : 0;
    /* torchrun's pages have localhost:0 for one node: any free port */
    long least =
        len == strlen("localhost") && strncmp(host, "localhost", len) == 0 ? 0 : 1;
    if (len == 0 || (colon && (end == colon + 1 || *end || port < least || port > 65535)))
        return err_set(err, "%s takes an address, or address:port, not '%.80s'", name,
                       text);
    strv_push_nodup(&opts->texts, xstrndup(host, len));
    opts->master_addr = opts->texts.v[opts->texts.n - 1];
    if (port)
        opts->master_port = (int)port;
    return 0;
}

static int read_hang_after(const struct option *o, const char *name, const char *text,
                           struct opts *opts, struct ddp_err *err)
{
    if (strcmp(text, "off") != 0)
        return read_span(o, name, text, opts, err);
    opts->hang_after_ms = 0;
    return 0;
}

/* The descriptor is looked at now, before ddprun opens any of its own. */
static int read_events(const struct option *o, const char *name, const char *text,
                       struct opts *opts, struct ddp_err *err)
{
    char *end = NULL;
    bool number = strncmp(text, "fd:", 3) == 0;
    long fd = number ? strtol(text + 3, &end, 10) : 0;
    if (number && (end == text + 3 || *end || fd < 0 || fd > INT_MAX))
        return err_set(err, "%s fd:N takes the number of a descriptor, not '%.40s'", name,
                       text + 3);
    int flags = number ? fcntl((int)fd, F_GETFL) : O_WRONLY;
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
        return err_set(err, "%s: descriptor %ld is not open for writing", name, fd);
    return read_text(o, name, text, opts, err);
}

static int read_ui(const struct option *o, const char *name, const char *text,
                   struct opts *opts, struct ddp_err *err)
{
    opts->ui = strcmp(text, "on") == 0 ? "0" : text; /* "on": without a value */
    return *opts->ui ? 0 : err_set(err, "%s: an empty ADDRESS", name);
}

static int read_regex(const struct option *o, const char *name, const char *text,
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

/* --- the table ---------------------------------------------------------------------- */

static const struct word map_words[] = {{"block", MAP_BLOCK},    {"slot", MAP_BLOCK},
                                        {"cyclic", MAP_CYCLIC},  {"node", MAP_CYCLIC},
                                        {"ppr:N:node", MAP_PPR}, {0}};
static const struct word bind_words[] = {{"auto", BIND_AUTO},
                                         {"none", BIND_NONE},
                                         {"core", BIND_CORE},
                                         {"numa", BIND_NUMA},
                                         {"socket", BIND_SOCKET},
                                         {"hwthread", BIND_HWTHREAD},
                                         {0}};
static const struct word tag_words[] = {
    {"auto", TAG_AUTO}, {"off", TAG_OFF}, {"on", TAG_ON}, {0}};
static const struct word hang_words[] = {{"report", ON_HANG_REPORT},
                                         {"stop", ON_HANG_STOP},
                                         {"restart", ON_HANG_RESTART},
                                         {0}};
static const struct word store_words[] = {
    {"launcher", STORE_LAUNCHER}, {"rank0", STORE_RANK0}, {0}};
static const struct word name_words[] = {
    {"ompi", NAMES_OMPI}, {"slurm", NAMES_SLURM}, {"pmi", NAMES_PMI}, {"tf", NAMES_TF},
    {"dmlc", NAMES_DMLC}, {"all", NAMES_ALL},     {"none", 0},        {0}};
static const struct word mpi_words[] = {
    {"auto", MPI_AUTO}, {"pmix", MPI_PMIX}, {"pmi", MPI_PMI}, {"none", MPI_NONE}, {0}};
static const struct word input_words[] = {{"rank0", INPUT_RANK0},
                                          {"0", INPUT_RANK0},
                                          {"all", INPUT_ALL},
                                          {"none", INPUT_NONE},
                                          {0}};

static const struct word script_words[] = {{"slurm", SCHED_SLURM},
                                           {"sge", SCHED_SGE},
                                           {"pbs", SCHED_PBS},
                                           {"lsf", SCHED_LSF},
                                           {0}};
static const struct word start_words[] = {{"ssh", BY_SSH},     {"srun", BY_SRUN},
                                          {"qrsh", BY_QRSH},   {"blaunch", BY_BLAUNCH},
                                          {"tmrsh", BY_TMRSH}, {0}};

#define AT(member) offsetof(struct opts, member)

const struct option options[] = {
    {.arg = "placement", .doc = "Hosts, ranks and CPUs"},
    {"np n", "N", AT(np), read_number, 1, RANKS_MAX, NULL,
     "start N ranks; default: one per slot (on one machine without GPU: 1)", HERE},
    {"hostfile machinefile f", "FILE", AT(hostfile), read_text, 0, 0, NULL,
     "hosts and their slots, one per line, as Open MPI, MPICH or Horovod write them",
     NOT_IN_SCRIPT},
    {"host H hosts", "LIST", AT(hosts), read_text, 0, 0, NULL,
     "hosts n1:4,n2:4 or n[01-16]:4; with --hostfile or inside a scheduler's job: use only "
     "these, or leave ^host out",
     NOT_IN_SCRIPT},
    {"alloc", "hostfile|slurm|sge|pbs|lsf|flux|sagemaker|hosts|mpi-hostfile|local",
     AT(alloc), read_text, 0, 0, NULL,
     "source of the hosts (hosts: -H); default: the first one that is found",
     NOT_IN_SCRIPT},
    {"nproc-per-node ppn npernode ntasks-per-node", "N", AT(per_node), read_per_node, 1,
     RANKS_MAX, NULL,
     "N ranks on each host; auto, gpu (default): its slots, else its GPUs, else 1", HERE},
    {"N", "N", AT(letter_n), read_number, 1, RANKS_MAX, NULL,
     "N ranks on each host, as in mpirun; with --script: N nodes, as in sbatch", HERE},
    {"nnodes", "N|MIN:MAX", AT(nnodes), read_nnodes, 1, RANKS_MAX, NULL,
     "spread the ranks over the first N hosts; default: all. MIN:MAX: go on with fewer, at "
     "least MIN, when hosts cannot be started or are lost. With --node-rank: the number of "
     "hosts on which ddprun is started",
     HERE},
    {"node-rank", "K", AT(node_rank), read_number, 0, RANKS_MAX, NULL,
     "this is host K, from 0, of --nnodes hosts on each of which ddprun is started by hand; "
     "they meet at --master-addr",
     NOT_IN_SCRIPT},
    {"oversubscribe", NULL, AT(oversubscribe), read_flag, 0, 0, NULL,
     "allow more ranks than slots, up to max_slots"},
    {"map-by", "block|cyclic|ppr:N:node", AT(map_by), read_map_by, 0, 0, map_words,
     "order of ranks: block (or slot) fills one host after the other, cyclic (or node) goes "
     "round, ppr:N:node puts N on each"},
    {"bind-to", "auto|none|core|hwthread|numa|socket", AT(bind_to), read_bind_to, 0, 0,
     bind_words,
     "CPUs of a rank: auto (a share near its GPU; not bound on a small machine), none, "
     "core, hwthread (one each), numa, socket (all of the one that holds its share)"},
    {"virtual-local-rank", NULL, 0, read_one_gpu, 0, 0, NULL,
     "each rank sees only its own GPU, as device 0, and LOCAL_RANK=0"},

    {.arg = "environment", .doc = "What the ranks see: variables, MPI, store, network"},
    {"x", "NAME[=VALUE]", 0, read_export, 0, 0, NULL,
     "pass this variable to all ranks; may be repeated"},
    {"rank-names", "LIST", AT(rank_names), read_rank_names, 0, 0, name_words,
     "set rank and size under the names of ompi, slurm, pmi, too; all (default: these "
     "three) or none; tf: TF_CONFIG of TensorFlow; dmlc: XGBoost's tracker"},
    {"mpi", "[auto|pmix|pmi|none]", AT(mpi), read_choice, 0, 0, mpi_words,
     "offer MPI programs PMIx, PMI, both (auto, the default) or none"},
    {"store", "launcher|rank0", AT(store), read_choice, 0, 0, store_words,
     "launcher (default): ddprun runs the store; rank0: rank 0 of the program does"},
    {"store-port", "PORT", AT(store_port), read_number, 1, 65535, NULL,
     "MASTER_PORT; default: any free port"},
    {"master-port", "PORT", AT(master_port), read_number, 1, 65535, NULL,
     "the same; with --node-rank the port at which the hosts meet (default: 29400)"},
    {"store-open", NULL, AT(store_open), read_flag, 0, 0, NULL,
     "serve any client that can reach the store; default: this job only"},
    {"master-addr rdzv-endpoint", "ADDRESS[:PORT]", AT(master_addr), read_master, 0, 0,
     NULL, "MASTER_ADDR; default: an address of rank 0's host that all hosts can reach"},
    {"interface network-interface iface", "NAME", AT(interface), read_text, 0, 0, NULL,
     "network interface of the store, Gloo and NCCL"},
    {"container", "IMAGE", AT(container), read_text, 0, 0, NULL,
     "start each rank inside this image, with the working directory, /tmp, network, "
     "/dev/shm and GPUs of the host"},
    {"container-engine", "NAME", AT(container_engine), read_text, 0, 0, NULL,
     "apptainer, singularity, podman or enroot; default: the first one in PATH"},
    {"include", "h1@h2", 0, read_include, 0, 0, NULL,
     "use only these hosts, as in DeepSpeed; the same as -H h1,h2", NOT_IN_SCRIPT},
    {"exclude", "h1@h2", 0, read_include, 0, 0, NULL,
     "leave these hosts out; the same as -H ^h1,^h2", NOT_IN_SCRIPT},
    {"wdir wd chdir", "DIR", AT(wdir), read_text, 0, 0, NULL,
     "working directory of the ranks; default: that of ddprun"},

    {.arg = "output", .doc = "Output and input"},
    {"tag-output", "[=auto|off|on]", AT(tag_output), read_choice, 0, 0, tag_words,
     "prefix each line with its rank and host; auto (default): if there are several ranks; "
     "without =...: on"},
    {"timestamp-output", NULL, AT(timestamp_output), read_flag, 0, 0, NULL,
     "prefix each line with the time it was written"},
    {"output-filename", "PATTERN", AT(output_filename), read_text, 0, 0, NULL,
     "write each rank's output to files, too: a directory, or a name with %r (rank), %h "
     "(host), %a (attempt)"},
    {"output-from", "RANKS", AT(output_from), read_ranks, 0, 0, NULL,
     "show only these ranks, such as 0-3,8"},
    {"stdin", "rank0|all|none", AT(input), read_choice, 0, 0, input_words,
     "ranks that read the standard input: rank0 (default), all, none"},

    {.arg = "watch", .doc = "Watch a running job"},
    {"events", "FILE|fd:N|-", AT(events), read_events, 0, 0, NULL,
     "append what happens to the job as JSON, an object per line, to this file, descriptor "
     "or, with -, to the standard output"},
    {"ui", "[=ADDRESS:PORT]", 0, read_ui, 0, 0, NULL,
     "serve a page that shows the job: hosts, ranks, their output, failures, loss; by default "
     "for this machine only (127.0.0.1), and always by a secret in its URL"},
    {"metrics", "ADDRESS:PORT|FILE", AT(metrics), read_text, 0, 0, NULL,
     "serve metrics for Prometheus at /metrics, or write them to a file every 10 s"},
    {"metric", "REGEX", AT(metric), read_regex, 0, 0, NULL,
     "take name=value from lines of output that match, for --ui and --metrics; default: "
     "lines of rank 0 with 'loss'"},
    {"top", NULL, AT(top), read_flag, 0, 0, NULL,
     "show a running job in this terminal, named by the pid of its ddprun or by its id if "
     "there are several; start nothing",
     HERE},
    {"hang-after", "TIME|off", AT(hang_after_ms), read_hang_after, 1000, 0, NULL,
     "when no rank has entered a collective for so long and some wait in one, report which "
     "rank is missing and where it is; default: 5m. Ctrl-\\ reports at any time"},
    {"on-hang", "report|stop|restart", AT(on_hang), read_choice, 0, 0, hang_words,
     "after that report go on (default), stop the job, or restart it as --max-restarts "
     "allows"},
    {"report-on", "JOB", AT(report_on), read_text, 0, 0, NULL,
     "print what the ranks of a running job of yours do, given by the pid of its ddprun or "
     "its id",
     NOT_IN_SCRIPT},

    {.arg = "launch", .doc = "Start, supervise, stop"},
    {"app configfile", "FILE", AT(app), read_text, 0, 0, NULL,
     "several programs, one per line: -np 2 program args...", HERE},
    {"as", "torchrun|mpirun|mpiexec|horovodrun", 0, read_as_late, 0, 0, NULL,
     "first of all: what follows is the command line of that program", HERE},
    {"m module", NULL, AT(module), read_flag, 0, 0, NULL,
     "the program is a Python module, as in 'python -m'"},
    {"no-python", NULL, AT(no_python), read_flag, 0, 0, NULL,
     "run the program as it is; default: a .py, .sh or .jl file that is not executable gets "
     "its interpreter"},
    {"timeout", "TIME", AT(timeout_ms), read_span, 1, 0, NULL,
     "stop the job after 90, 5m, 1h30m with exit code 124; default: never"},
    {"start-timeout", "TIME", AT(start_timeout_ms), read_span, 1, 0, NULL,
     "how long to wait for all hosts at the start; default: 60s"},
    {"node-timeout", "TIME", AT(node_timeout_ms), read_span, 2000, 0, NULL,
     "a host that is silent for so long is lost, which ends the job; default: 60s"},
    {"peer-key", "WHERE", AT(peer_key), read_text, 0, 0, NULL,
     "how ddprun processes started on each host authenticate: by a file in this shared "
     "directory (default: ~/.ddprun), by the secret in this file, or none: by address only"},
    {"grace", "TIME", AT(grace_ms), read_span, 0, 0, NULL,
     "time between TERM and KILL when ranks are stopped; default: 5s"},
    {"max-restarts", "N", AT(max_restarts), read_number, 0, RANKS_MAX, NULL,
     "when a rank fails, restart all ranks, up to N times; default: 0"},
    {"restart-delay", "TIME", AT(restart_delay_ms), read_span, 1, 0, NULL,
     "wait so long before ranks are restarted after a failed rank, twice as long after each "
     "attempt that got no further, up to 16 times; default: 0"},
    {"max-no-progress", "K", AT(max_no_progress), read_number, 1, RANKS_MAX, NULL,
     "when K attempts in a row got no further, end the job with exit code 93: do not requeue. "
     "Progress: a rank prints 'ddprun.checkpoint STEP', or --progress-file changes"},
    {"progress-file", "FILE", AT(progress_file), read_text, 0, 0, NULL,
     "a file or directory that changes when the program gets further, as its checkpoint"},
    {"spares", "N", AT(spares), read_number, 0, RANKS_MAX, NULL,
     "the last N hosts get no rank; each takes the place of a host that is lost, in another "
     "attempt"},
    {"preload", "MODULES", AT(preload), read_modules, 0, 0, NULL,
     "fork the Python ranks of a host from one interpreter that has imported these, such as "
     "torch,numpy, if that is safe; default: what the script imports first, if torch is "
     "among it"},
    {"no-preload", NULL, 0, read_no_preload, 0, 0, NULL,
     "each Python rank imports on its own"},
    {"start launcher", "ssh|srun|qrsh|blaunch|tmrsh", AT(start), read_choice, 0, 0,
     start_words,
     "how to start agents on other hosts; default: by the scheduler of this job, else by ssh"},
    {"ssh", "COMMAND", AT(ssh), read_text, 0, 0, NULL,
     "the ssh command, split at blanks; default: ssh"},
    {"ssh-window", "N", AT(ssh_window), read_number, 1, 4096, NULL,
     "ssh connections to open at the same time; default: 64"},
    {"tree-width", "N", AT(tree_width), read_number, 0, 4096, NULL,
     "each host starts at most N others; 0: ddprun starts all; default: 32"},
    {"agent", "PATH|push", AT(agent), read_text, 0, 0, NULL,
     "path of ddprun-agent on the hosts; default: beside ddprun. push: copy it there by ssh"},

    {.arg = "batch", .doc = "Batch scripts"},
    {"script", "slurm|sge|pbs|lsf", AT(script), read_choice, 0, 0, script_words,
     "print a batch script that runs the program; start nothing", HERE},
    {"submit", NULL, AT(submit), read_flag, 0, 0, NULL,
     "submit that script, and print the job's number", HERE},
    {"site", "NAME|FILE", AT(site), read_text, 0, 0, NULL,
     "the cluster: its limits are checked, its names used", SCRIPT_ONLY},
    {"list-sites", NULL, AT(list_sites), read_flag, 0, 0, NULL,
     "print the known clusters and their limits", HERE},
    {"gpus-per-node", "N", AT(gpus_per_node), read_number, 0, 1024, NULL,
     "GPUs of each node, one rank per GPU; default: all GPUs of the site's nodes",
     SCRIPT_ONLY},
    {"cpus-per-task", "N", AT(cpus_per_task), read_number, 1, 4096, NULL,
     "CPUs of each rank; default: its share of the node", SCRIPT_ONLY},
    {"mem", "SIZE", 0, read_memory, 0, 0, NULL,
     "memory of each node, such as 64G; default: the job's share of the node",
     SCRIPT_ONLY},
    {"time walltime", "TIME", 0, read_walltime, 0, 0, NULL,
     "time limit of the job: 90m, 2h, 1d12h, 36:00:00; default: 1h", SCRIPT_ONLY},
    {"warning", "TIME", AT(warning_ms), read_span, 1000, 0, NULL,
     "send the ranks SIGTERM so long before the time limit; default: 2m", SCRIPT_ONLY},
    {"requeue", "[=WORDS]", 0, read_requeue, 0, 0, NULL,
     "requeue a job that ran out of time; the program then gets these arguments, too; "
     "without =...: --resume",
     SCRIPT_ONLY},
    {"partition queue", "NAME", AT(partition), read_plain, 0, 0, NULL,
     "partition, queue or resource type; default: the site's first that fits",
     SCRIPT_ONLY},
    {"account", "NAME", AT(account), read_plain, 0, 0, NULL,
     "account, project or group that pays", SCRIPT_ONLY},
    {"job-name", "NAME", AT(job_name), read_text, 0, 0, NULL,
     "name of the job; default: the program's", SCRIPT_ONLY},
    {"modules", "NAMES", AT(modules), read_plain, 0, 0, NULL,
     "environment modules to load, separated by blanks; default: the site's",
     SCRIPT_ONLY},

    {.arg = "data", .doc = "Data sets, before a job"},
    {"fetch-data", "NAME", AT(fetch_data), read_text, 0, 0, NULL,
     "download a data set (mnist, fashion-mnist) into the directory NAME and verify it; on "
     "a login node, as compute nodes often have no internet"},
    {"data-dir", "DIR", AT(data_dir), read_text, 0, 0, NULL,
     "with --fetch-data: the directory"},
    {"data-mirror", "URL", AT(data_mirror), read_url, 0, 0, NULL,
     "with --fetch-data: download from https://... or file:///..."},
    {"data-sets", "FILE", AT(data_sets), read_text, 0, 0, NULL,
     "with --fetch-data: another table of data sets"},

    {.arg = "scaling", .doc = "Measure scaling"},
    {"scaling", "SIZES", AT(scaling), read_text, 0, 0, NULL,
     "run with 1,2,4,8 ranks, and show speed-up and efficiency", HERE},
    {"scaling-dir", "DIR", AT(scaling_dir), read_text, 0, 0, NULL,
     "directory of its table, as CSV, text and SVG; default: scaling", HERE},

    {.arg = "inspect", .doc = "Plans, checks and logs"},
    {"dry-run", NULL, AT(dry_run), read_flag, 0, 0, NULL,
     "print the plan, the environment and the commands; start nothing", HERE},
    {"preflight", NULL, AT(preflight), read_flag, 0, 0, NULL,
     "check every host for this program: reachable, same files and libraries, GPUs, clock, "
     "space, limits, names, network; start nothing"},
    {"show-env", NULL, AT(show_env), read_flag, 0, 0, NULL,
     "print the table of variables that ranks receive"},
    {"report", NULL, AT(report), read_flag, 0, 0, NULL,
     "print at the end how many ranks ran where, and how long it took"},
    {"v verbose", NULL, AT(verbose), read_flag, 0, 0, NULL,
     "print decisions, and replaced variables"},
    {"log-level", "LEVELS", AT(log_level), read_text, 0, 0, NULL,
     "error, warn, info, debug, trace; by part: start=debug,store=trace"},
    {"help h", "[TOPIC]", 0, NULL, 0, 0, NULL,
     "the usual options; with a TOPIC or an option's name: help about that"},
    {"version V", NULL, 0, NULL, 0, 0, NULL, "the version"},
};

const size_t options_len = ARRAY_LEN(options);
