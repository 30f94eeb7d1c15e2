/* launcher/tools/script/template.c - see template.h
 *
 * One pass over the lines with a small stack of sections. Values are not searched for
 * "{{", so nothing that a user types can become part of the template.
 */
#include "launcher/tools/script/template.h"

#include "common/err.h"
#include "common/mem.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEPTH_MAX = 8 }; /* of sections, and of templates within templates */

struct section {
    char name[64];
    bool write; /* its lines, as far as its own condition goes */
    int line;
};

struct fill {
    const char *name; /* of the template */
    const struct strv *values;
    template_find_fn find;
    void *arg;
    FILE *out;
    struct ddp_err *err;
    int depth; /* templates around this one */
    int line;
    struct section open[DEPTH_MAX];
    int nopen;
};

/* One "{{name}}" in a line. */
struct place {
    const char *start, *end; /* from the first '{' to behind the last '}' */
    char name[64];
};

static int complain(const struct fill *f, long column, const char *what, const char *name)
{
    return err_set(f->err, "%s:%d:%ld: %s '%s'", f->name, f->line, column, what, name);
}

/* The next place in [from, end): 1, 0 when there is none, -1 when it is not closed. */
static int next_place(const struct fill *f, const char *line, const char *from,
                      const char *end, struct place *p)
{
    const char *start = memmem(from, (size_t)(end - from), "{{", 2);
    if (!start)
        return 0;
    const char *stop = memmem(start, (size_t)(end - start), "}}", 2);
    if (!stop)
        return err_set(f->err, "%s:%d:%ld: '{{' without '}}'", f->name, f->line,
                       (long)(start - line) + 1);
    const char *a = start + 2, *b = stop;
    while (a < b && *a == ' ')
        a++;
    while (b > a && b[-1] == ' ')
        b--;
    p->start = start;
    p->end = stop + 2;
    snprintf(p->name, sizeof p->name, "%.*s", (int)(b - a), a);
    return 1;
}

static bool writing(const struct fill *f)
{
    for (int i = 0; i < f->nopen; i++) {
        if (!f->open[i].write)
            return false;
    }
    return true;
}

/* --- sections, partials, comments --------------------------------------------------- */

static int open_section(struct fill *f, const struct place *p, const char *line)
{
    const char *name = p->name + 1 + strspn(p->name + 1, " ");
    const char *value = strv_env_get(f->values, name);
    if (!value)
        return complain(f, p->start - line + 1, "unknown name", name);
    if (f->nopen == DEPTH_MAX)
        return complain(f, p->start - line + 1, "too many sections around", name);
    struct section *s = &f->open[f->nopen++];
    snprintf(s->name, sizeof s->name, "%s", name);
    s->write = (*value != '\0') == (p->name[0] == '#');
    s->line = f->line;
    return 0;
}

static int close_section(struct fill *f, const struct place *p, const char *line)
{
    const char *name = p->name + 1 + strspn(p->name + 1, " ");
    if (f->nopen == 0 || strcmp(f->open[f->nopen - 1].name, name) != 0)
        return complain(f, p->start - line + 1, "nothing open is called", name);
    f->nopen--;
    return 0;
}

static int fill_text(struct fill *f, const char *text);

static int include(struct fill *f, const struct place *p, const char *line)
{
    const char *name = p->name + 1 + strspn(p->name + 1, " ");
    const char *text = f->find ? f->find(name, f->arg, f->err) : NULL;
    if (f->depth == DEPTH_MAX)
        return complain(f, p->start - line + 1, "templates within templates, at", name);
    if (!text && f->find)
        return err_prefix(f->err, "%s:%d", f->name, f->line);
    if (!text)
        return complain(f, p->start - line + 1, "there are no other templates:", name);
    struct fill inner = {.name = name,
                         .values = f->values,
                         .find = f->find,
                         .arg = f->arg,
                         .out = f->out,
                         .err = f->err,
                         .depth = f->depth + 1};
    return fill_text(&inner, text);
}

/* Is this tag alone in its line, and not a value? */
static bool steers(const struct place *p, const char *line, const char *end)
{
    return line + strspn(line, " \t") == p->start && p->end == end &&
           strchr("#^/>!", p->name[0]) && p->name[0];
}

static int steer(struct fill *f, const struct place *p, const char *line)
{
    switch (p->name[0]) {
    case '#':
    case '^':
        return open_section(f, p, line);
    case '/':
        return close_section(f, p, line);
    case '>':
        return writing(f) ? include(f, p, line) : 0;
    default:
        return 0; /* a comment */
    }
}

/* --- lines that are written --------------------------------------------------------- */

static size_t count_lines(const char *value)
{
    size_t n = *value != '\0';
    for (; *value; value++)
        n += *value == '\n' && value[1];
    return n;
}

/* The k-th line of a value, or its only one. */
static void write_value(FILE *out, const char *value, size_t k)
{
    if (count_lines(value) == 1)
        k = 0;
    for (; k > 0; k--)
        value = strchr(value, '\n') + 1;
    fwrite(value, 1, strcspn(value, "\n"), out);
}

/* How often the line is written. */
static int count_copies(const struct fill *f, const char *line, const char *end,
                        size_t *copies)
{
    struct place p;
    int rc;
    *copies = 1;
    for (const char *at = line; (rc = next_place(f, line, at, end, &p)) > 0; at = p.end) {
        const char *value = strv_env_get(f->values, p.name);
        if (!value)
            return complain(f, p.start - line + 1, "unknown name", p.name);
        size_t n = count_lines(value);
        if (n > 1 && *copies > 1)
            return complain(f, p.start - line + 1, "a second value of several lines",
                            p.name);
        *copies = *copies == 0 || n == 0 ? 0 : n > 1 ? n : *copies;
    }
    return rc;
}

static int write_line(struct fill *f, const char *line, const char *end)
{
    size_t copies;
    if (count_copies(f, line, end, &copies) < 0)
        return -1; /* unknown names are errors in skipped lines, too */
    for (size_t k = 0; k < copies && writing(f); k++) {
        struct place p;
        const char *at = line;
        for (; next_place(f, line, at, end, &p) > 0; at = p.end) {
            fwrite(at, 1, (size_t)(p.start - at), f->out);
            write_value(f->out, strv_env_get(f->values, p.name), k);
        }
        fwrite(at, 1, (size_t)(end - at), f->out);
        fputc('\n', f->out);
    }
    return 0;
}

static int fill_text(struct fill *f, const char *text)
{
    for (const char *line = text; *line;) {
        const char *end = line + strcspn(line, "\n");
        struct place p;
        f->line++;
        int rc = next_place(f, line, line, end, &p);
        if (rc > 0 && steers(&p, line, end))
            rc = steer(f, &p, line);
        else if (rc >= 0)
            rc = write_line(f, line, end);
        if (rc < 0)
            return -1;
        line = *end ? end + 1 : end;
    }
    if (f->nopen > 0) {
        f->line = f->open[f->nopen - 1].line;
        return complain(f, 1, "nothing closes", f->open[f->nopen - 1].name);
    }
    return 0;
}

char *template_fill(const char *name, const char *text, const struct strv *values,
                    template_find_fn find, void *arg, struct ddp_err *err)
{
    char *result = NULL;
    size_t size;
    FILE *out = xmemstream(&result, &size);
    struct fill f = {
        .name = name, .values = values, .find = find, .arg = arg, .out = out, .err = err};
    int rc = fill_text(&f, text);
    xmemclose(out);
    if (rc < 0) {
        free(result);
        return NULL;
    }
    return result;
}
