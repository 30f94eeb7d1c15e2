/* launcher/tools/scaling/growth.c - see growth.h */
#include "launcher/tools/scaling/growth.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/number.h"
#include "common/svg_plot.h"
#include "common/text_file.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- numbers ------------------------------------------------------------------------ */

/* Work per second: the program's own rate, or else 1 / time (strong scaling) or
 * ranks / time (weak scaling). */
static double throughput(const struct row *r, bool by_rate)
{
    if (by_rate)
        return r->rate.value;
    return (r->series == SERIES_WEAK ? r->ranks : 1) / r->seconds;
}

/* Rates are used if every run of the series has printed one, in the same unit. */
static bool all_have_rates(const struct row *rows, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (rows[i].rate.value <= 0 || strcmp(rows[i].rate.unit, rows[0].rate.unit) != 0)
            return false;
    }
    return true;
}

static size_t count_series(const struct growth *t, size_t from)
{
    size_t n = from;
    while (n < t->n && t->rows[n].series == t->rows[from].series)
        n++;
    return n - from;
}

static void make_numbers(struct growth *t)
{
    for (size_t i = 0; i < t->n;) {
        struct row *base = &t->rows[i];
        size_t n = count_series(t, i);
        bool by_rate = all_have_rates(base, n);
        for (size_t k = 0; k < n; k++) {
            struct row *r = &base[k];
            r->speedup = base->ranks * throughput(r, by_rate) / throughput(base, by_rate);
            r->efficiency = r->speedup / r->ranks;
        }
        i += n;
    }
}

void growth_add(struct growth *t, const struct row *row)
{
    size_t i = 0;
    while (i < t->n &&
           (t->rows[i].series < row->series ||
            (t->rows[i].series == row->series && t->rows[i].ranks < row->ranks)))
        i++;
    bool there =
        i < t->n && t->rows[i].series == row->series && t->rows[i].ranks == row->ranks;
    if (!there) {
        t->rows = xrealloc(t->rows, t->n + 1, sizeof *t->rows);
        memmove(&t->rows[i + 1], &t->rows[i], (t->n - i) * sizeof *t->rows);
        t->n++;
    }
    t->rows[i] = *row;
    make_numbers(t);
}

void growth_finish(struct growth *t)
{
    free(t->rows);
    *t = (struct growth){0};
}

/* --- csv ---------------------------------------------------------------------------- */

static const char heading[] = "scaling,ranks,seconds,rate,unit,speedup,efficiency";

static void write_csv(const struct growth *t, FILE *out)
{
    fprintf(out, "%s\n", heading);
    for (size_t i = 0; i < t->n; i++) {
        const struct row *r = &t->rows[i];
        fprintf(out, "%s,%d,%.3f,", series_names[r->series], r->ranks, r->seconds);
        if (r->rate.value > 0)
            fprintf(out, "%.6g,%s", r->rate.value, r->rate.unit);
        else
            fprintf(out, ",");
        fprintf(out, ",%.4f,%.4f\n", r->speedup, r->efficiency);
    }
}

static bool read_row(const char *line, struct row *r)
{
    char series[16];
    int used = 0;
    *r = (struct row){0};
    if (sscanf(line, "%15[a-z],%d,%lf,%n", series, &r->ranks, &r->seconds, &used) != 3 ||
        used == 0 || r->ranks < 1 || !(r->seconds > 0))
        return false;
    while (r->series < SERIES_COUNT && strcmp(series_names[r->series], series) != 0)
        r->series++;
    if (line[used] != ',' &&
        sscanf(line + used, "%lf,%23[a-zA-Z/]", &r->rate.value, r->rate.unit) != 2)
        return false;
    return r->series < SERIES_COUNT;
}

int growth_load(struct growth *t, const char *folder, struct ddp_err *err)
{
    OWNED char *path = xasprintf("%s/scaling.csv", folder);
    SCOPED(close_file) FILE *in = fopen(path, "re");
    char line[200];
    if (!in)
        return errno == ENOENT ? 0 : err_errno(err, "cannot read '%s'", path);
    for (int number = 1; fgets(line, sizeof line, in); number++) {
        struct row r;
        line[strcspn(line, "\n")] = '\0';
        bool head = number == 1;
        if (head ? strcmp(line, heading) != 0 : !read_row(line, &r))
            return err_set(err, "%s:%d:1: not a line of this table; move the file away",
                           path, number);
        if (!head)
            growth_add(t, &r);
    }
    return 0;
}

/* --- text --------------------------------------------------------------------------- */

/* "12,345", "3.21" */
static void format_rate(double value, char *out, size_t size)
{
    if (value < 1000 || value > 1e18) /* no whole number of 64 bits */
        snprintf(out, size, "%.4g", value);
    else
        snprintf(out, size, "%s", number_grouped((uint64_t)llrint(value)).text);
}

static const char *const meanings[SERIES_COUNT] = {
    "strong scaling: the same work for all ranks together",
    "weak scaling: the same work for each rank",
};

void growth_print(const struct growth *t, FILE *out)
{
    char rate[40];
    for (size_t i = 0; i < t->n; i++) {
        const struct row *r = &t->rows[i];
        bool first = i == 0 || r->series != r[-1].series;
        if (first) {
            const char *unit = *r->rate.unit ? r->rate.unit : "rate";
            fprintf(out, "%s%s\n", i > 0 ? "\n" : "", meanings[r->series]);
            fprintf(out, "%8s %10s %14s %9s %11s\n", "ranks", "seconds", unit, "speed-up",
                    "efficiency");
        }
        if (r->rate.value > 0)
            format_rate(r->rate.value, rate, sizeof rate);
        else
            snprintf(rate, sizeof rate, "-");
        fprintf(out, "%8d %10.2f %14s %9.2f %9.0f %%%s\n", r->ranks, r->seconds, rate,
                r->speedup, r->efficiency * 100, first ? "  the base" : "");
    }
}

/* --- plot --------------------------------------------------------------------------- */

static const char style[] =
    "polyline,path.strong,path.weak,path.ideal{fill:none;stroke-width:2}\n"
    ".ideal{stroke:#8c959f;stroke-dasharray:4 4}.strong{stroke:#1d6fb8}.weak{stroke:#c2410c}\n"
    "circle.strong{fill:#1d6fb8}circle.weak{fill:#c2410c}\n";

static double pick_speedup(const struct row *r)
{
    return r->speedup;
}

static double pick_efficiency(const struct row *r)
{
    return r->efficiency * 100;
}

static void draw_series(const struct panel *p, const struct growth *t,
                        double (*pick)(const struct row *r))
{
    int right = 260;
    for (size_t i = 0; i < t->n;) {
        size_t n = count_series(t, i);
        const char *class = series_names[t->rows[i].series];
        OWNED double *x = xcalloc(n, sizeof *x);
        OWNED double *y = xcalloc(n, sizeof *y);
        for (size_t k = 0; k < n; k++) {
            x[k] = t->rows[i + k].ranks;
            y[k] = pick(&t->rows[i + k]);
        }
        panel_line(p, class, x, y, n);
        for (size_t k = 0; k < n; k++) {
            char words[80];
            snprintf(words, sizeof words, "%g ranks: %.3g%s, %.2f s", x[k], y[k], p->unit,
                     t->rows[i + k].seconds);
            panel_dot(p, class, x[k], y[k], words);
        }
        panel_legend(p, right, class, class);
        right -= 90;
        i += n;
    }
    panel_legend(p, 80, "ideal", "ideal");
}

static int draw(const struct growth *t, const char *path, const char *title,
                struct ddp_err *err)
{
    struct svg_plot f;
    TRY(svg_plot_open(&f, path, title, style, 2, err));
    double hi = 1, lo = INFINITY, best = 1, most = 100, ticks[SIZES_MAX];
    int nticks = 0;
    for (size_t i = 0; i < t->n; i++) {
        double ranks = t->rows[i].ranks;
        lo = fmin(lo, ranks);
        best = fmax(best, t->rows[i].speedup);
        most = fmax(most, t->rows[i].efficiency * 100);
        if (i > 0 && t->rows[i].series != t->rows[0].series && ranks <= hi)
            continue; /* labelled already */
        hi = fmax(hi, ranks);
        if (nticks < SIZES_MAX)
            ticks[nticks++] = ranks;
    }
    lo = fmin(lo, hi);
    struct panel p = {.out = f.out,
                      .xlo = lo,
                      .xhi = hi > lo ? hi : lo + 1,
                      .xlog = hi / lo > 16,
                      .unit = "",
                      .along = "ranks",
                      .xticks = ticks,
                      .nxticks = nticks};
    p.top = svg_plot_panel(0);
    p.what = "speed-up";
    p.log = p.xlog;
    p.lo = p.log ? fmin(lo, 1) : 0;
    p.hi = fmax(hi, best) > p.lo ? fmax(hi, best) : p.lo + 1;
    double ends[2] = {lo, hi}, hundred[2] = {100, 100};
    panel_axes(&p);
    panel_line(&p, "ideal", ends, ends, 2);
    draw_series(&p, t, pick_speedup);
    p.top = svg_plot_panel(1);
    p.what = "efficiency";
    p.unit = "%";
    p.log = false;
    p.lo = 0;
    p.hi = most * 1.05;
    panel_axes(&p);
    panel_line(&p, "ideal", ends, hundred, 2);
    draw_series(&p, t, pick_efficiency);
    return svg_plot_close(&f, err);
}

/* --- files -------------------------------------------------------------------------- */

static int put_file(const struct growth *t, const char *folder, const char *name,
                    void (*write)(const struct growth *t, FILE *out), struct ddp_err *err)
{
    OWNED char *path = xasprintf("%s/%s", folder, name);
    OWNED char *text = NULL;
    size_t size = 0;
    FILE *out = xmemstream(&text, &size);
    write(t, out);
    xmemclose(out);
    return text_file_replace(path, text, size, 0666) < 0
               ? err_errno(err, "cannot write '%s'", path)
               : 0;
}

int growth_save(const struct growth *t, const char *folder, const char *title,
                struct ddp_err *err)
{
    OWNED char *svg = xasprintf("%s/scaling.svg", folder);
    OWNED char *temporary = xasprintf("%s.new", svg);
    TRY(draw(t, temporary, title, err));
    if (rename(temporary, svg) < 0)
        return err_errno(err, "cannot write '%s'", svg);
    TRY(put_file(t, folder, "scaling.txt", growth_print, err));
    /* last: a row in it is in the other files too */
    return put_file(t, folder, "scaling.csv", write_csv, err);
}
