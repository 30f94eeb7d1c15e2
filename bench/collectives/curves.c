/* bench/collectives/curves.c - latency and bandwidth of messages as one picture
 *
 * usage: curves FILE.svg <lines
 *
 * A line of the input is "NAME BYTES MICROSECONDS MEGABYTES-PER-SECOND"; the lines of one
 * name are together, by bytes.
 */
#include "common/svg_plot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { CURVES = 4, POINTS = 64, LEGEND = 110 };

struct curve {
    char name[32], class[8];
    size_t n;
    double bytes[POINTS], us[POINTS], mbs[POINTS];
};

static const char style[] =
    "polyline{fill:none;stroke-width:2}path{fill:none;stroke-width:2}.grid{stroke-width:1}"
    ".c0{stroke:#0969da}.c1{stroke:#cf222e}.c2{stroke:#8250df}.c3{stroke:#6e7781}";

static size_t read_curves(FILE *in, struct curve *curves)
{
    size_t n = 0;
    char name[32];
    double bytes, us, mbs;
    while (fscanf(in, "%31s %lf %lf %lf", name, &bytes, &us, &mbs) == 4) {
        if (n == 0 || strcmp(curves[n - 1].name, name) != 0) {
            if (n == CURVES)
                break;
            curves[n] = (struct curve){.n = 0};
            memcpy(curves[n].name, name, sizeof name);
            snprintf(curves[n].class, sizeof curves[n].class, "c%zu", n);
            n++;
        }
        struct curve *c = &curves[n - 1];
        if (c->n < POINTS) {
            c->bytes[c->n] = bytes;
            c->us[c->n] = us;
            c->mbs[c->n++] = mbs;
        }
    }
    return n;
}

/* Ends of an axis that all values lie within: powers of ten. */
static void ends(const struct curve *curves, size_t n, size_t at, double *lo, double *hi)
{
    *lo = INFINITY;
    *hi = 0;
    for (size_t k = 0; k < n; k++) {
        const double *v = (const double *)((const char *)&curves[k] + at);
        for (size_t i = 0; i < curves[k].n; i++) {
            *lo = v[i] < *lo ? v[i] : *lo;
            *hi = v[i] > *hi ? v[i] : *hi;
        }
    }
    *lo = pow(10, floor(log10(*lo)));
    *hi = pow(10, ceil(log10(*hi)));
}

static void draw(FILE *out, int k, const char *what, const struct curve *curves, size_t n,
                 size_t at)
{
    struct panel p = {.out = out,
                      .top = svg_plot_panel(k),
                      .log = true,
                      .xlog = true,
                      .what = what,
                      .unit = "",
                      .along = "bytes"};
    ends(curves, n, offsetof(struct curve, bytes), &p.xlo, &p.xhi);
    ends(curves, n, at, &p.lo, &p.hi);
    panel_axes(&p);
    for (size_t i = 0; i < n; i++) {
        const struct curve *c = &curves[i];
        panel_line(&p, c->class, c->bytes, (const double *)((const char *)c + at), c->n);
        panel_legend(&p, LEGEND * (int)(n - i), c->class, c->name);
    }
}

int main(int argc, char **argv)
{
    static struct curve curves[CURVES];
    struct ddp_err err;
    struct svg_plot f;
    size_t n = read_curves(stdin, curves);
    if (argc != 2 || n == 0) {
        fprintf(stderr, "usage: curves FILE.svg <lines of 'name bytes us mb/s'\n");
        return 2;
    }
    int rc = svg_plot_open(&f, argv[1], "messages between two ranks of one host", style,
                           2, &err);
    if (rc == 0) {
        draw(f.out, 0, "latency, microseconds", curves, n, offsetof(struct curve, us));
        draw(f.out, 1, "bandwidth, MB/s", curves, n, offsetof(struct curve, mbs));
        rc = svg_plot_close(&f, &err);
    }
    if (rc < 0)
        fprintf(stderr, "%s\n", err.text);
    return rc < 0;
}
