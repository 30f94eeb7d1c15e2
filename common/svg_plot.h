/* common/svg_plot.h - line plots as one SVG file
 *
 * A figure is a title and panels below each other; a panel maps numbers to coordinates,
 * and curves, axes and text are drawn through it. Axes are linear or logarithmic.
 */
#ifndef COMMON_SVG_PLOT_H
#define COMMON_SVG_PLOT_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

struct svg_plot {
    FILE *out; /* owned between svg_plot_open() and svg_plot_close() */
    const char *path;
};

/* All borrowed. Values outside lo..hi are clamped to the edge. */
struct panel {
    FILE *out;            /* the figure's */
    double top;           /* y of its upper edge: svg_plot_panel() */
    double xlo, xhi;      /* xlo < xhi */
    double lo, hi;        /* lo < hi */
    bool log, xlog;       /* logarithmic axis; both ends are positive */
    const char *what;     /* "loss" */
    const char *unit;     /* "" or "%" */
    const char *along;    /* "epochs" */
    const double *xticks; /* ticks of the x axis; NULL: automatic */
    int nxticks;
};

/* `title` is any text, `style` additional CSS for the classes of the curves. The path is
 * borrowed until svg_plot_close(), which returns whether everything was written. */
int svg_plot_open(struct svg_plot *f, const char *path, const char *title,
                  const char *style, int panels, struct ddp_err *err);
int svg_plot_close(struct svg_plot *f, struct ddp_err *err);

/* The upper edge of the k-th panel. */
double svg_plot_panel(int k);

void panel_axes(const struct panel *p);

/* A line through the points whose y is a number. */
void panel_line(const struct panel *p, const char *class, const double *x,
                const double *y, size_t n);
/* A dot at one point, with a tooltip. */
void panel_dot(const struct panel *p, const char *class, double x, double y,
               const char *words);
/* A label in its curve's colour, `right` from the panel's right edge. */
void panel_legend(const struct panel *p, int right, const char *class, const char *name);

/* Ticks for an axis from lo to hi: at most `room`, 1, 2 or 5 times a power of ten apart.
 * Returns how many. */
int svg_plot_ticks(double lo, double hi, double *ticks, int room);

#endif
