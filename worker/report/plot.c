/* worker/report/plot.c - see plot.h
 *
 * The axis of the loss is logarithmic if it spans decades.
 */
#include "worker/report/plot.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"
#include "common/svg_plot.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the points ---- */

/* Replaces each two points by their mean; from now on a point has twice as many steps. */
static void halve(struct history *h)
{
    h->nsteps /= 2;
    h->each *= 2;
    for (size_t i = 0; i < h->nsteps; i++) {
        h->at[i] = (h->at[2 * i] + h->at[2 * i + 1]) / 2;
        h->loss[i] = (h->loss[2 * i] + h->loss[2 * i + 1]) / 2;
    }
}

void history_step(struct history *h, double at, double loss)
{
    h->each = h->each ? h->each : 1;
    h->open_at += at;
    h->open_loss += loss;
    if (++h->nopen < h->each)
        return;
    h->at[h->nsteps] = h->open_at / (double)h->nopen;
    h->loss[h->nsteps++] = h->open_loss / (double)h->nopen;
    h->open_at = h->open_loss = 0;
    h->nopen = 0;
    if (h->nsteps == HISTORY_STEPS)
        halve(h);
}

void history_epoch(struct history *h, const struct report *r)
{
    h->epochs = xrealloc(h->epochs, h->nepochs + 1, sizeof *h->epochs);
    h->epochs[h->nepochs++] = *r;
}

void history_finish(struct history *h)
{
    free(h->epochs);
    *h = (struct history){0};
}

/* ---- panels ---- */

/* `member`: of struct report, a double. */
static void draw_epochs(const struct panel *p, const struct history *h, size_t member,
                        const char *class)
{
    OWNED double *x = xcalloc(h->nepochs + 1, sizeof *x),
                 *y = xcalloc(h->nepochs + 1, sizeof *y);
    for (size_t i = 0; i < h->nepochs; i++) {
        x[i] = h->epochs[i].epoch;
        memcpy(&y[i], (const char *)&h->epochs[i] + member, sizeof *y);
    }
    panel_line(p, class, x, y, h->nepochs);
    for (size_t i = 0; i < h->nepochs; i++) {
        char words[80];
        snprintf(words, sizeof words, "epoch %g: %.4g%s", x[i], y[i], p->unit);
        panel_dot(p, class, x[i], y[i], words);
    }
}

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
    for (size_t i = 0; i < h->nsteps; i++)
        widen(p, h->loss[i]);
    for (size_t i = 0; i < h->nepochs; i++)
        widen(p, h->epochs[i].test_loss);
    p->log = p->lo > 0 && p->hi / p->lo > 8;
    if (p->log)
        p->lo /= 1.15, p->hi *= 1.15;
    else
        p->lo = p->lo < 0 ? p->lo : 0, p->hi = p->hi > p->lo ? p->hi * 1.05 : p->lo + 1;
    panel_axes(p);
    panel_line(p, "steps", h->at, h->loss, h->nsteps);
    draw_epochs(p, h, offsetof(struct report, test_loss), "test");
    panel_legend(p, 240, "steps", "training steps");
    panel_legend(p, 90, "test", "test set");
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
    panel_axes(p);
    draw_epochs(p, h, offsetof(struct report, train_accuracy), "train");
    draw_epochs(p, h, offsetof(struct report, test_accuracy), "test");
    panel_legend(p, 240, "train", "training set");
    panel_legend(p, 90, "test", "test set");
}

static const char style[] =
    ".steps,.train,.test{fill:none;stroke-width:1.6;stroke-linejoin:round}\n"
    ".steps,.train{stroke:#7ba7d7}.test{stroke:#c2410c;stroke-width:2}\n"
    "circle.train{fill:#7ba7d7}circle.test{fill:#c2410c}\n";

int plot_write(const char *path, const char *title, const struct history *h,
               struct ddp_err *err)
{
    bool accuracy = false;
    struct panel p = {.top = svg_plot_panel(0), .along = "epochs"};
    if (h->nsteps > 0) {
        p.xlo = floor(h->at[0]);
        p.xhi = h->at[h->nsteps - 1];
    }
    for (size_t i = 0; i < h->nepochs; i++) {
        accuracy |= isfinite(h->epochs[i].test_accuracy);
        p.xhi = fmax(p.xhi, h->epochs[i].epoch);
    }
    if (!(p.xhi > p.xlo))
        p.xhi = p.xlo + 1;
    struct svg_plot f;
    TRY(svg_plot_open(&f, path, title, style, accuracy ? 2 : 1, err));
    p.out = f.out;
    draw_loss(&p, h);
    if (accuracy) {
        p.top = svg_plot_panel(1);
        p.log = false;
        draw_accuracy(&p, h);
    }
    return svg_plot_close(&f, err);
}
