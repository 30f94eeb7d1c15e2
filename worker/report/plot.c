/* worker/report/plot.c - see plot.h
 *
 * A panel maps numbers to points of the picture; curves, axes and words are drawn through
 * it. Loss spans decades, so its axis is logarithmic where it does. Thousands of steps
 * become a few hundred points, each the mean of its neighbours: what an eye can see.
 */
#include "worker/report/plot.h"

#include "common/err.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    WIDTH = 760,
    LEFT = 64,
    RIGHT = 24,
    TOP = 56,
    PANEL = 220, /* height of one */
    GAP = 72,    /* below each: its axis */
    CURVE_POINTS = 400,
};

struct panel {
    FILE *out;
    double top;       /* y of its upper edge */
    double xlo, xhi;  /* epochs */
    double lo, hi;    /* what it shows */
    bool log;         /* lo and hi are positive, the axis is logarithmic */
    const char *what; /* "loss" */
    const char *unit; /* "" or "%" */
};

/* A value of each epoch: which member of struct epoch_point. */
typedef double (*pick_fn)(const struct epoch_point *p);

static double pick_test_loss(const struct epoch_point *p)
{
    return p->test_loss;
}

static double pick_train_accuracy(const struct epoch_point *p)
{
    return p->train_accuracy;
}

static double pick_test_accuracy(const struct epoch_point *p)
{
    return p->test_accuracy;
}

/* One point of the steps' curve: the mean of those from the `*i`-th on, which is moved
 * past them. False: there are no more. */
static bool next_mean(const struct history *h, size_t *i, struct step_point *mean)
{
    size_t per = (h->nsteps + CURVE_POINTS - 1) / CURVE_POINTS, first = *i;
    *mean = (struct step_point){0, 0};
    for (; *i < h->nsteps && *i < first + per; ++*i) {
        mean->at += h->steps[*i].at;
        mean->loss += h->steps[*i].loss;
    }
    mean->at /= (double)(*i - first);
    mean->loss /= (double)(*i - first);
    return *i > first;
}

/* ---- axes ---- */

int plot_ticks(double lo, double hi, double *ticks, int room)
{
    double unit = pow(10, floor(log10((hi - lo) / room))), by = unit;
    static const int factors[] = {1, 2, 5, 10, 20, 50, 100};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++) {
        by = unit * factors[i];
        if (floor(hi / by + 1e-9) - ceil(lo / by - 1e-9) + 1 <= room)
            break;
    }
    int n = 0;
    for (double k = ceil(lo / by - 1e-9); n < room && k <= hi / by + 1e-9; k++)
        ticks[n++] = k * by + 0.0; /* not -0 */
    return n;
}

/* 1, 2 and 5 of each decade; only the decades where there are many. */
static int log_ticks(double lo, double hi, double *ticks, int room)
{
    static const int factors[] = {1, 2, 5};
    int per = log10(hi / lo) * 3 > room ? 1 : 3, n = 0;
    for (double decade = floor(log10(lo)); decade <= log10(hi); decade++) {
        for (int i = 0; i < per && n < room; i++) {
            double t = factors[i] * pow(10, decade);
            if (t >= lo * (1 - 1e-9) && t <= hi * (1 + 1e-9))
                ticks[n++] = t;
        }
    }
    return n;
}

static double x_of(const struct panel *p, double at)
{
    return LEFT + (at - p->xlo) / (p->xhi - p->xlo) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct panel *p, double value)
{
    double v = value < p->lo ? p->lo : value > p->hi ? p->hi : value;
    double part =
        p->log ? log(v / p->lo) / log(p->hi / p->lo) : (v - p->lo) / (p->hi - p->lo);
    return p->top + PANEL * (1 - part);
}

static void draw_axes(const struct panel *p)
{
    double ticks[8];
    int n =
        p->log ? log_ticks(p->lo, p->hi, ticks, 8) : plot_ticks(p->lo, p->hi, ticks, 6);
    for (int i = 0; i < n; i++) {
        double y = y_of(p, ticks[i]);
        fprintf(p->out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT, y,
                WIDTH - RIGHT);
        fprintf(p->out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g%s</text>\n",
                LEFT - 8, y + 4, ticks[i], p->unit);
    }
    n = plot_ticks(p->xlo, p->xhi, ticks, 8);
    for (int i = 0; i < n; i++) {
        double x = x_of(p, ticks[i]);
        fprintf(p->out, "<path class=\"grid\" d=\"M%.1f %.1fv%d\"/>\n", x, p->top, PANEL);
        fprintf(p->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n",
                x, p->top + PANEL + 18, ticks[i]);
    }
    fprintf(p->out, "<path class=\"axis\" d=\"M%d %.1fv%dH%d\"/>\n", LEFT, p->top, PANEL,
            WIDTH - RIGHT);
    fprintf(p->out, "<text class=\"name\" x=\"%d\" y=\"%.1f\">%s</text>\n", LEFT,
            p->top - 10, p->what);
    fprintf(p->out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">epochs</text>\n",
            WIDTH - RIGHT, p->top + PANEL + 36);
}

/* ---- curves ---- */

static void draw_steps(const struct panel *p, const struct history *h)
{
    size_t i = 0;
    struct step_point mean;
    fprintf(p->out, "<polyline class=\"steps\" points=\"");
    while (next_mean(h, &i, &mean))
        fprintf(p->out, "%.1f,%.1f ", x_of(p, mean.at), y_of(p, mean.loss));
    fprintf(p->out, "\"/>\n");
}

static void draw_epochs(const struct panel *p, const struct history *h, pick_fn pick,
                        const char *class)
{
    fprintf(p->out, "<polyline class=\"%s\" points=\"", class);
    for (size_t i = 0; i < h->nepochs; i++) {
        const struct epoch_point *e = &h->epochs[i];
        if (isfinite(pick(e)))
            fprintf(p->out, "%.1f,%.1f ", x_of(p, e->at), y_of(p, pick(e)));
    }
    fprintf(p->out, "\"/>\n");
    for (size_t i = 0; i < h->nepochs; i++) {
        const struct epoch_point *e = &h->epochs[i];
        if (isfinite(pick(e)))
            fprintf(p->out,
                    "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\">"
                    "<title>epoch %g: %.4g%s</title></circle>\n",
                    class, x_of(p, e->at), y_of(p, pick(e)), e->at, pick(e), p->unit);
    }
}

/* A name in its curve's colour, `right` from the panel's right edge. */
static void draw_legend(const struct panel *p, int right, const char *class,
                        const char *name)
{
    fprintf(p->out,
            "<path class=\"%s\" d=\"M%d %.1fh22\"/><text x=\"%d\" y=\"%.1f\">%s</text>\n",
            class, WIDTH - RIGHT - right, p->top - 14, WIDTH - RIGHT - right + 28,
            p->top - 10, name);
}

/* ---- panels ---- */

static void widen(struct panel *p, double value)
{
    if (isfinite(value)) {
        p->lo = value < p->lo ? value : p->lo;
        p->hi = value > p->hi ? value : p->hi;
    }
}

static void draw_loss(struct panel *p, const struct history *h)
{
    p->what = "loss";
    p->unit = "";
    p->lo = INFINITY;
    p->hi = -INFINITY;
    struct step_point mean;
    for (size_t i = 0; next_mean(h, &i, &mean);)
        widen(p, mean.loss);
    for (size_t i = 0; i < h->nepochs; i++)
        widen(p, h->epochs[i].test_loss);
    if (!(p->lo <= p->hi))
        p->lo = 0, p->hi = 1;
    p->log = p->lo > 0 && p->hi / p->lo > 8;
    if (p->log)
        p->lo /= 1.15, p->hi *= 1.15;
    else
        p->lo = p->lo < 0 ? p->lo : 0, p->hi = p->hi > p->lo ? p->hi * 1.05 : p->lo + 1;
    draw_axes(p);
    draw_steps(p, h);
    draw_epochs(p, h, pick_test_loss, "test");
    draw_legend(p, 240, "steps", "training steps");
    draw_legend(p, 90, "test", "test set");
}

static void draw_accuracy(struct panel *p, const struct history *h)
{
    p->what = "accuracy";
    p->unit = "%";
    p->lo = 100;
    p->hi = 100;
    for (size_t i = 0; i < h->nepochs; i++) {
        widen(p, h->epochs[i].train_accuracy);
        widen(p, h->epochs[i].test_accuracy);
    }
    p->lo = p->lo < 100 ? floor(p->lo) : 99;
    draw_axes(p);
    draw_epochs(p, h, pick_train_accuracy, "train");
    draw_epochs(p, h, pick_test_accuracy, "test");
    draw_legend(p, 240, "train", "training set");
    draw_legend(p, 90, "test", "test set");
}

static void draw_text(FILE *out, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '>')
            fputs("&gt;", out);
        else if (*text == '&')
            fputs("&amp;", out);
        else if ((unsigned char)*text >= ' ')
            fputc(*text, out);
    }
}

static const char style[] =
    "<style>\n"
    "svg{background:#fff}\n"
    "text{font:12px system-ui,sans-serif;fill:#57606a}\n"
    ".title{font-size:15px;font-weight:600;fill:#1f2328}\n"
    ".name{font-size:13px;font-weight:600;fill:#1f2328}\n"
    ".grid{stroke:#e4e8ec}.axis{stroke:#8c959f;fill:none}\n"
    ".steps,.train,.test{fill:none;stroke-width:1.6;stroke-linejoin:round}\n"
    ".steps,.train{stroke:#7ba7d7}.test{stroke:#c2410c;stroke-width:2}\n"
    "circle.train{fill:#7ba7d7}circle.test{fill:#c2410c}\n"
    "</style>\n";

static void draw(FILE *out, const char *title, const struct history *h)
{
    bool accuracy = false;
    struct panel p = {.out = out, .top = TOP + 16, .xlo = 0, .xhi = 0};
    if (h->nsteps > 0) {
        p.xlo = floor(h->steps[0].at);
        p.xhi = h->steps[h->nsteps - 1].at;
    }
    for (size_t i = 0; i < h->nepochs; i++) {
        accuracy |= isfinite(h->epochs[i].test_accuracy);
        p.xhi = h->epochs[i].at > p.xhi ? h->epochs[i].at : p.xhi;
    }
    if (!(p.xhi > p.xlo))
        p.xhi = p.xlo + 1;
    int height = TOP + 16 + (accuracy ? 2 : 1) * (PANEL + GAP);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
            "width=\"%d\" height=\"%d\" role=\"img\">\n",
            WIDTH, height, WIDTH, height);
    fputs("<title>", out);
    draw_text(out, title);
    fprintf(out, "</title>\n%s<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n", style,
            WIDTH, height);
    fprintf(out, "<text class=\"title\" x=\"%d\" y=\"30\">", LEFT);
    draw_text(out, title);
    fputs("</text>\n", out);
    draw_loss(&p, h);
    if (accuracy) {
        p.top += PANEL + GAP;
        p.log = false;
        draw_accuracy(&p, h);
    }
    fputs("</svg>\n", out);
}

int plot_write(const char *path, const char *title, const struct history *h,
               struct ddp_err *err)
{
    FILE *out = fopen(path, "we");
    if (!out)
        return err_errno(err, "cannot create '%s'", path);
    draw(out, title, h);
    bool bad = ferror(out) != 0;
    if (fclose(out) != 0 || bad)
        return err_errno(err, "cannot write '%s'", path);
    return 0;
}
