/* launcher/tools/fetch/catalog.c - see catalog.h
 *
 * Parsed by libinih. Every line of every set is checked, not only the wanted one's, so
 * that an error in the file is found early.
 */
#include "launcher/tools/fetch/catalog.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/text_file.h"

#include <ini.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct reading {
    const char *wanted;
    struct data_set *out;
    struct strv names;   /* of all sets, for the error message */
    struct ddp_err *err; /* set by the first invalid line */
};

static bool is_sha256(const char *text)
{
    return strlen(text) == DIGEST_TEXT - 1 &&
           text[strspn(text, "0123456789abcdef")] == '\0';
}

/* "NAME BYTES SHA256" */
static int read_file(const char *value, struct data_file *f, struct ddp_err *err)
{
    char name[200], sum[80];
    int used = 0;
    if (sscanf(value, "%199s %" SCNd64 " %79s%n", name, &f->bytes, sum, &used) != 3 ||
        value[used] != '\0')
        return err_set(err, "'file' is NAME BYTES SHA256, not '%.80s'", value);
    if (strchr(name, '/') || name[0] == '.')
        return err_set(err, "'%s' is no name of a file in one folder", name);
    if (f->bytes <= 0 || !is_sha256(sum))
        return err_set(err,
                       "'%s': its size or its SHA-256 (64 digits in lower case) is "
                       "wrong",
                       name);
    f->name = xstrdup(name);
    memcpy(f->sha256, sum, DIGEST_TEXT);
    return 0;
}

static int take_line(struct reading *r, const char *section, const char *name,
                     const char *value, struct ddp_err *err)
{
    bool ours = strcmp(section, r->wanted) == 0;
    struct data_set *s = r->out;
    if (!*section)
        return err_set(err, "'%s' is before the first [name]", name);
    if (r->names.n == 0 || strcmp(r->names.v[r->names.n - 1], section) != 0)
        strv_push(&r->names, section);
    if (strcmp(name, "about") == 0) {
        if (ours && !s->about)
            s->about = xstrdup(value);
    } else if (strcmp(name, "url") == 0) {
        if (!strstr(value, "://"))
            return err_set(err, "'%.80s' is no URL such as https://... or file:///...",
                           value);
        if (ours)
            strv_push(&s->urls, value);
    } else if (strcmp(name, "file") == 0) {
        struct data_file f;
        TRY(read_file(value, &f, err));
        if (ours) {
            s->files = xrealloc(s->files, s->nfiles + 1, sizeof *s->files);
            s->files[s->nfiles++] = f;
        } else {
            free(f.name);
        }
    } else {
        return err_set(err, "'%s': expected about, url or file", name);
    }
    return 0;
}

/* libinih's handler: returning 0 makes ini_parse() return the number of the first such
 * line. */
static int on_line(void *arg, const char *section, const char *name, const char *value)
{
    struct reading *r = arg;
    struct ddp_err err;
    if (take_line(r, section, name, value, &err) == 0)
        return 1;
    if (!r->err->text[0])
        *r->err = err;
    return 0;
}

static int check(const struct reading *r, const char *path, struct ddp_err *err)
{
    struct data_set *s = r->out;
    if (s->nfiles > 0 && s->urls.n > 0)
        return 0;
    for (size_t i = 0; i < r->names.n; i++) {
        if (strcmp(r->names.v[i], r->wanted) == 0)
            return err_set(err, "'%s': [%s] has no 'url' or no 'file'", path, r->wanted);
    }
    OWNED char *all = shell_join(r->names.v ? r->names.v : (char *[]){NULL});
    err_set(err, "no data set '%.80s' in '%s'; it has: %s", r->wanted, path, all);
    return -1;
}

int catalog_find(const char *path, const char *name, struct data_set *out,
                 struct ddp_err *err)
{
    struct ddp_err why = {""};
    struct reading r = {.wanted = name, .out = out, .err = &why};
    *out = (struct data_set){.name = xstrdup(name)};
    OWNED char *text = text_file_read("table of data sets", path, err);
    int line = text ? ini_parse_string(text, on_line, &r) : -1, rc = -1;
    if (line > 0)
        rc = err_set(err, "'%s', line %d: %s", path, line,
                     why.text[0] ? why.text : "neither [name] nor 'key = value'");
    else if (line == 0)
        rc = check(&r, path, err);
    strv_finish(&r.names);
    if (rc < 0)
        data_set_finish(out);
    return rc;
}

void data_set_finish(struct data_set *s)
{
    for (size_t i = 0; i < s->nfiles; i++)
        free(s->files[i].name);
    free(s->files);
    free(s->name);
    free(s->about);
    strv_finish(&s->urls);
    *s = (struct data_set){0};
}
