/* launcher/cli/defaults.c - see defaults.h */
#define LOG_SUBSYS "options"
#include "launcher/cli/defaults.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

struct lines {
    FILE *f;
    int number;
    bool cut;          /* this one is longer than what inih takes */
    int other;         /* the first one in a section that is not ours; 0: none */
    struct strv words; /* name=value */
};

static int on_setting(void *arg, const char *section, const char *name, const char *value)
{
    struct lines *l = arg;
    bool ours = !*section || strcmp(section, "ddprun") == 0;
    if (!ours && l->other == 0)
        l->other = l->number;
    if (!ours || !name || !*name)
        return 0;
    strv_pushf(&l->words, "%s=%s", name, value ? value : "");
    return 1;
}

/* A file that others can write could make us run their commands (--ssh). */
static bool is_safe(const char *path, const struct stat *st)
{
    if ((st->st_uid == geteuid() || st->st_uid == 0) && !(st->st_mode & S_IWOTH))
        return true;
    log_warn("'%s' is ignored: another user can write it", path);
    return false;
}

/* Without its indentation: inih would append an indented line to the value before. */
static char *next_line(char *to, int room, void *stream)
{
    struct lines *l = stream;
    char *line = fgets(to, room, l->f);
    l->number++;
    l->cut = line && !strchr(line, '\n') && !feof(l->f);
    size_t indent = line ? strspn(line, " \t") : 0;
    if (indent > 0)
        memmove(line, line + indent, strlen(line + indent) + 1);
    return l->cut ? NULL : line;
}

static int read_lines(const char *path, FILE *f, defaults_fn take, void *arg,
                      struct ddp_err *err)
{
    struct lines l = {.f = f};
    int line = ini_parse_stream(next_line, &l, on_setting, &l), rc = 0;
    if (ferror(f))
        rc = err_set(err, "'%s' cannot be read", path);
    else if (line != 0 && line == l.other)
        rc = err_set(err, "'%s' line %d: in a section that is not [ddprun]", path, line);
    else if (line != 0)
        rc = err_set(err, "'%s' line %d: not 'name = value'", path, line);
    else if (l.cut)
        rc = err_set(err, "'%s' line %d is too long", path, l.number);
    else if (l.words.n > 0)
        rc = take(path, &l.words, arg, err);
    strv_finish(&l.words);
    return rc;
}

/* O_NONBLOCK: a FIFO is ignored. */
static int read_file(const char *path, defaults_fn take, void *arg, struct ddp_err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;
    SCOPED(close_file) FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (!f && errno == EACCES && access(path, F_OK) == 0)
        log_warn("'%s' is ignored: it cannot be read", path);
    else if (!f && errno != ENOENT && errno != ENOTDIR &&
             errno != EACCES) /* the HOME of another user, as sudo -u may leave it */
        rc = err_errno(err, "'%s'", path);
    else if (f && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && is_safe(path, &st))
        rc = read_lines(path, f, take, arg, err);
    return rc;
}

static char *user_file(void)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    return config && *config == '/' ? xasprintf("%s/ddprun/config", config)
           : home && *home          ? xasprintf("%s/.config/ddprun/config", home)
                                    : NULL;
}

/* PET_NPROC_PER_NODE=4, as Kubeflow Trainer sets in each pod. Ranks inherit these: below
 * another launcher they are not for this ddprun. */
static int read_pet(defaults_fn take, void *arg, struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv words = {0};
    for (char *const *e = environ; !getenv("TORCHELASTIC_RUN_ID") && *e; e++) {
        const char *equals = strchr(*e, '=');
        if (strncmp(*e, "PET_", 4) != 0 || !equals || !equals[1])
            continue;
        char *word = xstrdup(*e + 4);
        for (char *p = word; *p != '='; p++)
            *p = *p == '_' ? '-' : (char)tolower((unsigned char)*p);
        strv_push_nodup(&words, word);
    }
    return words.n > 0 ? take(DEFAULTS_PET, &words, arg, err) : 0;
}

static int read_variable(const char *name, defaults_fn take, void *arg,
                         struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv words = {0};
    const char *text = getenv(name);
    OWNED char *copy = xstrdup(text ? text : "");
    char *rest;
    for (char *w = strtok_r(copy, " \t\n", &rest); w; w = strtok_r(NULL, " \t\n", &rest))
        strv_push(&words, w);
    return words.n > 0 ? take(name, &words, arg, err) : 0;
}

int defaults_deepspeed(defaults_fn take, void *arg, struct ddp_err *err)
{
    const char *name = getenv("DS_ENV_FILE"), *home = getenv("HOME");
    name = name && *name ? name : ".deepspeed_env";
    OWNED char *path = *name != '/' && home ? xasprintf("%s/%s", home, name) : NULL;
    if (path)
        TRY(read_file(path, take, arg, err));
    return read_file(name, take, arg, err);
}

int defaults_each(defaults_fn take, void *arg, struct ddp_err *err)
{
    OWNED char *path = user_file();
    int rc = path ? read_file(path, take, arg, err) : 0;
    if (rc == 0)
        rc = read_file("ddprun.ini", take, arg, err);
    if (rc == 0)
        rc = read_pet(take, arg, err);
    return rc == 0 ? read_variable("DDPRUN_OPTIONS", take, arg, err) : rc;
}
