/* launcher/tools/script/site.c - see site.h
 *
 * inih parses the file, but tells no columns. So it reads the lines through next_line(),
 * which keeps the current one for messages. One table has the keys, their members and how
 * they are read.
 */
#include "launcher/tools/script/site.h"

#include "common/embedded.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/number.h"
#include "common/strv.h"
#include "common/text_file.h"
#include "launcher/cli/walltime.h"

#include <dirent.h>
#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct scheduler_facts schedulers[] = {
    [SCHED_NONE] = {.name = ""},
    [SCHED_SLURM] = {.name = "slurm",
                     .submit = "sbatch",
                     .brief = "--parsable",
                     .end_signals = "TERM",
                     .goes_on = true},
    [SCHED_SGE] = {.name = "sge",
                   .submit = "qsub",
                   .brief = "-terse",
                   .end_signals = "TERM",
                   .goes_on = true},
    [SCHED_PBS] = {.name = "pbs",
                   .submit = "qsub",
                   .end_signals = "TERM",
                   .submits_itself = true},
    [SCHED_LSF] = {.name = "lsf", .submit = "bsub", .end_signals = "INT TERM"},
    [SCHED_FLUX] = {.name = "flux",
                    .submit = "flux batch",
                    .end_signals = "HUP TERM",
                    .submits_itself = true},
};

/* --- values ------------------------------------------------------------------------- */

/* Reads `text` into the member `to`. */
typedef int (*value_fn)(const char *text, void *to, struct ddp_err *err);

static int read_text(const char *text, void *to, struct ddp_err *err)
{
    char **out = to;
    OWNED char *old = *out;
    /* inih passes the continuation lines of a value one by one */
    *out = old && *old ? xasprintf("%s\n%s", old, text) : xstrdup(text);
    return 0;
}

static int read_count(const char *text, void *to, struct ddp_err *err)
{
    return number_whole(text, 0, 1000000, to)
               ? 0
               : err_set(err, "expected a whole number, not '%.60s'", text);
}

static int read_yes(const char *text, void *to, struct ddp_err *err)
{
    bool yes = strcmp(text, "yes") == 0;
    if (!yes && strcmp(text, "no") != 0)
        return err_set(err, "expected yes or no, not '%.60s'", text);
    *(bool *)to = yes;
    return 0;
}

static int read_memory(const char *text, void *to, struct ddp_err *err)
{
    return memory_parse(text, to, err);
}

static int read_time(const char *text, void *to, struct ddp_err *err)
{
    return walltime_parse(text, to, err);
}

static int read_hours(const char *text, void *to, struct ddp_err *err)
{
    char *end;
    double hours = strtod(text, &end);
    if (end == text || *end || !(hours > 0 && hours < 1e9))
        return err_set(err, "expected a number, not '%.60s'", text);
    *(double *)to = hours;
    return 0;
}

static int read_scheduler(const char *text, void *to, struct ddp_err *err)
{
    for (size_t i = 1; i < ARRAY_LEN(schedulers); i++) {
        if (strcmp(schedulers[i].name, text) == 0) {
            *(enum scheduler *)to = (enum scheduler)i;
            return 0;
        }
    }
    return err_set(err, "expected " SCHEDULER_NAMES ", not '%.60s'", text);
}

/* As `qconf -sc` has it; HOST is Univa's and Altair's. */
static int read_consumable(const char *text, void *to, struct ddp_err *err)
{
    static const char *const kinds[] = {"YES", "JOB", "HOST"};
    for (size_t i = 0; i < ARRAY_LEN(kinds); i++) {
        if (strcmp(kinds[i], text) == 0) {
            *(enum consumable *)to = (enum consumable)i;
            return 0;
        }
    }
    return err_set(err, "expected YES, JOB or HOST, not '%.60s'", text);
}

#define LETTERS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_"
#define DIGITS  "0123456789"

/* The length of a variable's name. */
static size_t name_len(const char *text)
{
    return strspn(text, LETTERS) ? strspn(text, LETTERS DIGITS) : 0;
}

/* The script has it in double quotes: a path and $NAMES, no command substitution. */
static int read_path(const char *text, void *to, struct ddp_err *err)
{
    const char *at = text;
    while (*at) {
        size_t len = strspn(at, LETTERS DIGITS "./-");
        if (len == 0 && *at == '$') {
            bool braces = at[1] == '{';
            size_t name = name_len(at + 1 + braces);
            len = name && (!braces || at[name + 2] == '}') ? name + 1 + 2 * braces : 0;
        }
        if (len == 0)
            return err_set(err, "expected a path, perhaps with $NAME in it, not '%.60s'",
                           text);
        at += len;
    }
    return read_text(text, to, err);
}

/* The script has these words without quotes. */
static int read_words(const char *text, void *to, struct ddp_err *err)
{
    if (text[strspn(text, LETTERS DIGITS "./+-@: ")])
        return err_set(err, "expected names, separated by blanks, not '%.60s'", text);
    return read_text(text, to, err);
}

static int read_word(const char *text, void *to, struct ddp_err *err)
{
    if (text[strspn(text, LETTERS DIGITS "./+-@:")])
        return err_set(err, "expected one name, not '%.60s'", text);
    return read_text(text, to, err);
}

/* NAME=value, which the script exports without quotes; one per line. */
static int read_export(const char *text, void *to, struct ddp_err *err)
{
    size_t len = name_len(text);
    if (*text && (len == 0 || text[len] != '='))
        return err_set(err, "expected NAME=value, not '%.60s'", text);
    if (text[strspn(text, LETTERS DIGITS "./+-@:=,%^")])
        return err_set(err,
                       "expected a value of letters, digits and _./+-@:=,%%^, "
                       "not '%.60s'",
                       text);
    return *text ? read_text(text, to, err) : 0;
}

struct key {
    const char *name;
    size_t at;
    value_fn read;
};

#define AT(member) offsetof(struct site, member)
static const struct key site_keys[] = {
    {"title", AT(title), read_text},
    {"closed", AT(closed), read_text},
    {"scheduler", AT(scheduler), read_scheduler},
    {"account-required", AT(account), read_yes},
    {"account-hint", AT(account_hint), read_text},
    {"gpu-consumable", AT(consumable), read_consumable},
    {"request", AT(request), read_text},
    {"submit", AT(submit), read_text},
    {"modules-init", AT(modules_init), read_path},
    {"modules", AT(modules), read_words},
    {"scratch", AT(scratch), read_path},
    {"interface", AT(interface), read_word},
    {"export", AT(exports), read_export},
    {0},
};
#undef AT

#define AT(member) offsetof(struct partition, member)
static const struct key partition_keys[] = {
    {"nodes", AT(nodes), read_count},     {"gpus", AT(gpus), read_count},
    {"cores", AT(cores), read_count},     {"memory", AT(memory_mb), read_memory},
    {"time", AT(time_s), read_time},      {"node-hours", AT(node_hours), read_hours},
    {"whole-nodes", AT(whole), read_yes}, {"preemptible", AT(preemptible), read_yes},
    {"request", AT(request), read_text},  {0},
};
#undef AT

/* --- lines -------------------------------------------------------------------------- */

struct reading {
    struct site *site;
    const char *rest; /* of the file's text */
    char line[512];   /* the current one */
    int number;
    struct strv seen; /* "section/key=line" */
    bool failed;      /* err has the first error */
    struct ddp_err *err;
};

static void complain(struct reading *r, const char *at, const char *why)
{
    long column = at ? (long)(at - r->line) + 1 : 1;
    if (!r->failed)
        err_set(r->err, "%s:%d:%ld: %s", r->site->file, r->number, column, why);
    r->failed = true;
}

/* Gives inih the next line. It would split one that is too long, so that is an error. */
static char *next_line(char *to, int size, void *arg)
{
    struct reading *r = arg;
    if (!*r->rest || r->failed)
        return NULL;
    size_t len = strcspn(r->rest, "\n");
    r->number++;
    snprintf(r->line, sizeof r->line, "%.*s", (int)len, r->rest);
    if (len > (size_t)size - 3) {
        OWNED char *why =
            xasprintf("a line of %zu characters; at most %d are read (a value may "
                      "go on in the next line, indented)",
                      len, size - 3);
        complain(r, NULL, why);
        return NULL;
    }
    memcpy(to, r->rest, len);
    to[len] = '\n';
    to[len + 1] = '\0';
    r->rest += len + (r->rest[len] == '\n');
    return to;
}

static const struct key *find_key(const struct key *keys, const char *name)
{
    for (; keys->name; keys++) {
        if (strcmp(keys->name, name) == 0)
            return keys;
    }
    return NULL;
}

static struct partition *add_partition(struct site *s, const char *name)
{
    struct partition *found = site_partition(s, name);
    if (found)
        return found;
    s->partitions = xrealloc(s->partitions, s->npartitions + 1, sizeof *s->partitions);
    struct partition *p = &s->partitions[s->npartitions++];
    *p = (struct partition){.name = xstrdup(name), .gpus = -1};
    return p;
}

/* The keys of a section, and the struct they fill. */
static const struct key *find_section(struct reading *r, const char *section, void **base)
{
    *base = r->site;
    if (strcmp(section, "site") == 0)
        return site_keys;
    if (strncmp(section, "partition ", 10) == 0 && section[10]) {
        *base = add_partition(r->site, section + 10);
        return partition_keys;
    }
    OWNED char *why =
        *section ? xasprintf("a section is [site] or [partition NAME], not [%s]", section)
                 : xstrdup("a section must come first: [site]");
    complain(r, NULL, why);
    return NULL;
}

/* A key is given once in a section, however often that is opened. */
static bool note_key(struct reading *r, const char *section, const char *name)
{
    struct ddp_err why;
    OWNED char *key = xasprintf("%s/%s", section, name);
    const char *before = strv_env_get(&r->seen, key);
    if (before) {
        err_set(&why, "'%s' was given already, in line %s", name, before);
        complain(r, strstr(r->line, name), why.text);
    } else {
        strv_pushf(&r->seen, "%s=%d", key, r->number);
    }
    return !before;
}

static int on_value(void *arg, const char *section, const char *name, const char *value)
{
    struct reading *r = arg;
    void *base;
    struct ddp_err why;
    const struct key *keys = find_section(r, section, &base);
    if (!keys)
        return 0;
    const struct key *k = find_key(keys, name);
    if (!k) {
        err_set(&why, "unknown key '%s' in [%s]", name, section);
        complain(r, strstr(r->line, name), why.text);
        return 0;
    }
    bool goes_on = r->line[0] == ' ' || r->line[0] == '\t';
    if (!goes_on && !note_key(r, section, name))
        return 0;
    if (k->read(value, (char *)base + k->at, &why) == 0)
        return 1;
    err_prefix(&why, "%s", name);
    char *equals = strpbrk(r->line, "=:");
    complain(r, *value ? strstr(goes_on || !equals ? r->line : equals, value) : equals,
             why.text);
    return 0;
}

static int parse(struct site *s, const char *text, struct ddp_err *err)
{
    struct reading r = {.site = s, .rest = text, .err = err};
    int line = ini_parse_stream(next_line, &r, on_value, &r);
    strv_finish(&r.seen);
    if (!r.failed && line != 0) {
        const char *rest = text;
        for (int i = 1; i < line && *rest; i++)
            rest += strcspn(rest, "\n") + 1;
        return err_set(err, "%s:%d:1: '%.*s' is neither [section] nor key = value",
                       s->file, line,
                       (int)(strcspn(rest, "\n") > 60 ? 60 : strcspn(rest, "\n")), rest);
    }
    if (!r.failed && s->scheduler == SCHED_NONE)
        return err_set(err, "%s: [site] must say scheduler = " SCHEDULER_NAMES, s->file);
    return r.failed ? -1 : 0;
}

/* --- files -------------------------------------------------------------------------- */

/* Directory 0: the user's site files; 1: the machine's. The caller frees. */
static char *folder(int i)
{
    const char *home = getenv("HOME"), *config = getenv("XDG_CONFIG_HOME");
    if (i == 1)
        return xstrdup("/etc/ddprun/site");
    if (config && *config == '/')
        return xasprintf("%s/ddprun/site", config);
    return home && *home == '/' ? xasprintf("%s/.config/ddprun/site", home) : NULL;
}

/* The path of the site file for `name`, or NULL. The caller frees. */
static char *find_file(const char *name)
{
    if (strchr(name, '/') ||
        (strlen(name) > 4 && strcmp(strrchr(name, '\0') - 4, ".ini") == 0))
        return xstrdup(name);
    for (int i = 0; i < 2; i++) {
        OWNED char *dir = folder(i);
        char *path = dir ? xasprintf("%s/%s.ini", dir, name) : NULL;
        if (path && access(path, R_OK) == 0)
            return path;
        free(path);
    }
    return NULL;
}

static void unknown_site(const char *name, struct ddp_err *err)
{
    char all[300] = "";
    size_t n = 0;
    for (const struct embedded *e = embedded_templates; e->name && n < sizeof all; e++) {
        int len = (int)strlen(e->name) - 5 - 4; /* "site/" and ".ini" */
        if (strncmp(e->name, "site/", 5) == 0)
            n += (size_t)snprintf(all + n, sizeof all - n, "%s%.*s", n ? ", " : "", len,
                                  e->name + 5);
    }
    err_set(err, "no site '%s': there are %s, or the path of a file (--list-sites)", name,
            all);
}

struct site *site_read(const char *name, struct ddp_err *err)
{
    struct site *s = xcalloc(1, sizeof *s);
    OWNED char *path = find_file(name);
    OWNED char *inside = xasprintf("site/%s.ini", name);
    const char *carried = path ? NULL : embedded_text(embedded_templates, inside);
    OWNED char *text = path ? text_file_read("site file", path, err) : NULL;
    int rc = -1;
    s->name = xstrdup(name);
    s->file = xstrdup(path ? path : inside);
    if (!path && !carried)
        unknown_site(name, err);
    else if (text || carried)
        rc = parse(s, text ? text : carried, err);
    if (rc == 0)
        return s;
    site_destroy(s);
    return NULL;
}

void site_destroy(struct site *s)
{
    if (!s)
        return;
    for (size_t i = 0; i < s->npartitions; i++) {
        free(s->partitions[i].name);
        free(s->partitions[i].request);
    }
    free(s->partitions);
    char *texts[] = {s->name,    s->file,      s->title,        s->account_hint,
                     s->request, s->submit,    s->modules_init, s->modules,
                     s->scratch, s->interface, s->exports,      s->closed};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        free(texts[i]);
    free(s);
}

struct partition *site_partition(const struct site *s, const char *name)
{
    for (size_t i = 0; i < s->npartitions; i++) {
        if (strcmp(s->partitions[i].name, name) == 0)
            return &s->partitions[i];
    }
    return NULL;
}

/* --- --list-sites ------------------------------------------------------------------- */

/* " with 4 GPUs, 64 cores each": what is known of a node. */
static void say_node(const struct partition *p, char *out, size_t size)
{
    size_t n = 0;
    *out = '\0';
    if (p->gpus >= 0)
        n += (size_t)snprintf(out, size, " with %d GPU%s", p->gpus,
                              p->gpus == 1 ? "" : "s");
    if (p->cores > 0)
        n += (size_t)snprintf(out + n, size - n, "%s %d cores", n ? "," : " with",
                              p->cores);
    if (n > 0)
        snprintf(out + n, size - n, " each");
}

static void list_one(const char *name, const char *where, FILE *out)
{
    struct ddp_err err;
    struct site *s = site_read(where ? where : name, &err);
    if (s)
        fprintf(out, "%-10s %-6s %s%s%s%s%s\n", name, schedulers[s->scheduler].name,
                s->title ? s->title : "", s->closed ? ", closed in " : "",
                s->closed ? s->closed : "", where ? "; " : "", where ? where : "");
    else
        fprintf(out, "%-10s not usable: %s\n", name, err.text);
    for (size_t i = 0; s && i < s->npartitions; i++) {
        const struct partition *p = &s->partitions[i];
        char limit[40], nodes[32] = "nodes", each[64];
        walltime_say(p->time_s, limit, sizeof limit);
        say_node(p, each, sizeof each);
        if (p->nodes > 0)
            snprintf(nodes, sizeof nodes, "%d node%s", p->nodes,
                     p->nodes == 1 ? "" : "s");
        fprintf(out, "           %-14s %9s%s%s%s%s\n", p->name, nodes, each,
                *limit ? ", at most " : "", limit, p->preemptible ? ", preemptible" : "");
    }
    site_destroy(s);
}

static int is_ini(const struct dirent *d)
{
    size_t len = strlen(d->d_name);
    return len > 4 && strcmp(d->d_name + len - 4, ".ini") == 0;
}

void site_list(FILE *out)
{
    for (int i = 0; i < 2; i++) {
        struct dirent **found;
        OWNED char *dir = folder(i);
        int n = dir ? scandir(dir, &found, is_ini, alphasort) : -1;
        for (int k = 0; k < n; k++) {
            OWNED char *path = xasprintf("%s/%s", dir, found[k]->d_name);
            found[k]->d_name[strlen(found[k]->d_name) - 4] = '\0';
            list_one(found[k]->d_name, path, out);
            free(found[k]);
        }
        if (n >= 0)
            free(found);
    }
    for (const struct embedded *e = embedded_templates; e->name; e++) {
        if (strncmp(e->name, "site/", 5) != 0)
            continue;
        OWNED char *name = xstrndup(e->name + 5, strlen(e->name) - 9);
        list_one(name, NULL, out);
    }
}
