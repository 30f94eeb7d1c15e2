/* common/svg_plot.c - see svg_plot.h */
#include "common/svg_plot.h"

#include "common/err.h"
#include "common/output_path.h"
#include "common/utf8.h"

#include <math.h>

enum {
    WIDTH = 760,
    LEFT = 64,
    RIGHT = 24,
    TOP = 72,
    PANEL = 220, /* height of a panel */
    GAP = 72,    /* below each panel, for its axis */
};

/* --- axes --------------------------------------------------------------------------- */

int svg_plot_ticks(double lo, double hi, double *ticks, int room)
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

/* 1, 2 and 5 of each decade; only powers of ten if there are many. */
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

/* The position of `value` between the ends, from 0 to 1. */
static double part_of(double value, double lo, double hi, bool log_axis)
{
    double v = value < lo ? lo : value > hi ? hi : value;
    return log_axis ? log(v / lo) / log(hi / lo) : (v - lo) / (hi - lo);
}

static double x_of(const struct panel *p, double at)
{
    return LEFT + part_of(at, p->xlo, p->xhi, p->xlog) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const struct panel *p, double value)
{
    return p->top + PANEL * (1 - part_of(value, p->lo, p->hi, p->log));
}

double svg_plot_panel(int k)
{
    return TOP + (double)k * (PANEL + GAP);
}

void panel_axes(const struct panel *p)
{
    double ticks[8];
    int n = p->log ? log_ticks(p->lo, p->hi, ticks, 8)
                   : svg_plot_ticks(p->lo, p->hi, ticks, 6);
    for (int i = 0; i < n; i++) {
        double y = y_of(p, ticks[i]);
        fprintf(p->out, "<path class=\"grid\" d=\"M%d %.1fH%d\"/>\n", LEFT, y,
                WIDTH - RIGHT);
        fprintf(p->out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%g%s</text>\n",
                LEFT - 8, y + 4, ticks[i], p->unit);
    }
    n = p->xticks ? p->nxticks
        : p->xlog ? log_ticks(p->xlo, p->xhi, ticks, 8)
                  : svg_plot_ticks(p->xlo, p->xhi, ticks, 8);
    const double *along = p->xticks ? p->xticks : ticks;
    for (int i = 0; i < n; i++) {
        double x = x_of(p, along[i]);
        fprintf(p->out, "<path class=\"grid\" d=\"M%.1f %.1fv%d\"/>\n", x, p->top, PANEL);
        fprintf(p->out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%g</text>\n",
                x, p->top + PANEL + 18, along[i]);
    }
    fprintf(p->out, "<path class=\"axis\" d=\"M%d %.1fv%dH%d\"/>\n", LEFT, p->top, PANEL,
            WIDTH - RIGHT);
    fprintf(p->out, "<text class=\"name\" x=\"%d\" y=\"%.1f\">%s</text>\n", LEFT,
            p->top - 10, p->what);
    fprintf(p->out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
            WIDTH - RIGHT, p->top + PANEL + 36, p->along);
}

/* --- curves ------------------------------------------------------------------------- */

/* Without control characters, and bytes that are no UTF-8. */
static void draw_text(FILE *out, const char *text)
{
    for (size_t n; *text; text += n ? n : 1) {
        n = utf8_length(text);
        if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '>')
            fputs("&gt;", out);
        else if (*text == '&')
            fputs("&amp;", out);
        else if ((unsigned char)*text >= ' ')
            fwrite(text, 1, n, out);
    }
}

void panel_line(const struct panel *p, const char *class, const double *x,
                const double *y, size_t n)
{
    fprintf(p->out, "<polyline class=\"%s\" points=\"", class);
    for (size_t i = 0; i < n; i++) {
        if (isfinite(y[i]))
            fprintf(p->out, "%.1f,%.1f ", x_of(p, x[i]), y_of(p, y[i]));
    }
    fprintf(p->out, "\"/>\n");
}

void panel_dot(const struct panel *p, const char *class, double x, double y,
               const char *words)
{
    if (!isfinite(y))
        return;
    fprintf(p->out, "<circle class=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.5\"><title>",
            class, x_of(p, x), y_of(p, y));
    draw_text(p->out, words);
    fputs("</title></circle>\n", p->out);
}

void panel_legend(const struct panel *p, int right, const char *class, const char *name)
{
    fprintf(p->out,
            "<path class=\"%s\" d=\"M%d %.1fh22\"/><text x=\"%d\" y=\"%.1f\">%s</text>\n",
            class, WIDTH - RIGHT - right, p->top - 14, WIDTH - RIGHT - right + 28,
            p->top - 10, name);
}

/* --- the figure --------------------------------------------------------------------- */

static const char base_style[] = "svg{background:#fff}\n"
                                 "text{font:12px system-ui,sans-serif;fill:#57606a}\n"
                                 ".title{font-size:15px;font-weight:600;fill:#1f2328}\n"
                                 ".name{font-size:13px;font-weight:600;fill:#1f2328}\n"
                                 ".grid{stroke:#e4e8ec}.axis{stroke:#8c959f;fill:none}\n";

int svg_plot_open(struct svg_plot *f, const char *path, const char *title,
                  const char *style, int panels, struct ddp_err *err)
{
    f->path = path;
    const char *why;
    f->out = output_path_open(path, false, &why);
    if (!f->out)
        return err_set(err, "cannot create '%s': %s", path, why);
    int height = TOP + panels * (PANEL + GAP);
    fprintf(f->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
            "width=\"%d\" height=\"%d\" role=\"img\">\n",
            WIDTH, height, WIDTH, height);
    fputs("<title>", f->out);
    draw_text(f->out, title);
    fprintf(f->out,
            "</title>\n<style>\n%s%s</style>\n<rect width=\"%d\" height=\"%d\" "
            "fill=\"#fff\"/>\n",
            base_style, style, WIDTH, height);
    fprintf(f->out, "<text class=\"title\" x=\"%d\" y=\"30\">", LEFT);
    draw_text(f->out, title);
    fputs("</text>\n", f->out);
    return 0;
}

int svg_plot_close(struct svg_plot *f, struct ddp_err *err)
{
    fputs("</svg>\n", f->out);
    bool bad = ferror(f->out) != 0;
    if (fclose(f->out) != 0 || bad)
        return err_errno(err, "cannot write '%s'", f->path);
    return 0;
}
