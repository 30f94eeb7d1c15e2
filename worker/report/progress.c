/* worker/report/progress.c - see progress.h */
#include "worker/report/progress.h"

#include "common/duration.h"
#include "common/err.h"

#include <errno.h>
#include <inttypes.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    BAR_EVERY_MS = 100,    /* more often is not seen */
    LINE_EVERY_MS = 10000, /* shows in a long epoch that the run is alive */
    BAR_CELLS = 28,        /* if the terminal is wide enough */
    FEWEST_CELLS = 8,
    BESIDE_BAR = 64, /* columns of the text left and right of it */
    COLUMNS =
        72, /* assumed width of an unknown terminal; a launcher's tag fits before them */
};

/* The width of the terminal behind `out`; 0: not a terminal. */
static int find_columns(FILE *out)
{
    struct winsize size;
    if (isatty(fileno(out)))
        return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
                                                                             : COLUMNS;
    struct stat st;
    const char *text = getenv("DDPRUN_COLUMNS");
    if (fstat(fileno(out), &st) < 0 || !(S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)))
        return 0; /* stdout is not the launcher's pipe */
    int columns = text ? atoi(text) : 0;
    return columns > 0 && columns < 1000 ? columns : 0;
}

/* Whether the terminal uses UTF-8, without changing this program's locale. */
static bool shows_utf8(void)
{
    locale_t theirs = newlocale(LC_CTYPE_MASK, "", (locale_t)0);
    if (theirs == (locale_t)0)
        return false;
    bool utf8 = strcmp(nl_langinfo_l(CODESET, theirs), "UTF-8") == 0;
    freelocale(theirs);
    return utf8;
}

void progress_init(struct progress *p, FILE *out, enum progress_mode mode, int epochs)
{
    int found = find_columns(out), columns = found > 0 ? found : COLUMNS;
    int room = columns - BESIDE_BAR;
    bool bar = mode == PROGRESS_BAR || (mode == PROGRESS_AUTO && found > 0);
    *p = (struct progress){
        .out = out,
        .bar = bar,
        .steps = mode != PROGRESS_NONE,
        .unit = "images",
        .each = 1,
        .blocks = shows_utf8(),
        .columns = columns,
        .cells = room < FEWEST_CELLS ? FEWEST_CELLS
                 : room > BAR_CELLS  ? BAR_CELLS
                                     : room,
        .epochs = epochs,
        .last_ms = bar ? 0 : now_ms(),
    };
}

bool progress_flush(struct progress *p)
{
    if (fflush(p->out) == 0)
        return true;
    p->lost = p->lost ? p->lost : errno;
    /* so that exit() has nothing to flush; progress_check() reports the error */
    __fpurge(p->out);
    clearerr(p->out);
    return false;
}

void progress_erase(struct progress *p)
{
    if (p->drawn) {
        fputs("\033[K", p->out);
        progress_flush(p);
    }
    p->drawn = false;
}

void progress_say(struct progress *p, const char *fmt, ...)
{
    if (!p->out)
        return;
    progress_erase(p);
    va_list ap;
    va_start(ap, fmt);
    vfprintf(p->out, fmt, ap);
    va_end(ap);
    fputc('\n', p->out);
    progress_flush(p);
    p->gap = false;
}

int progress_check(const struct progress *p, struct ddp_err *err)
{
    if (p->lost == 0 || p->lost == EPIPE || p->lost == EBADF)
        return 0;
    errno = p->lost;
    return err_errno(err, "cannot write to stdout");
}

void progress_gap(struct progress *p)
{
    if (!p->gap)
        progress_say(p, "%s", "");
    p->gap = true;
}

/* A bar that is full up to `part`, in UTF-8. */
static const char *bar_text(const struct progress *p, double part,
                            char text[3 * BAR_CELLS + 1])
{
    char *to = text;
    int full = (int)(part * p->cells);
    for (int i = 0; i < p->cells; i++)
        to = stpcpy(to, p->blocks  ? (i < full ? "\u2501" : "\u2500")
                        : i < full ? "#"
                                   : "-");
    return text;
}

static void draw_bar(struct progress *p, const struct report *r, double part)
{
    char cells[3 * BAR_CELLS + 1];
    char tail[96];
    snprintf(tail, sizeof tail, "%3.0f %%  loss %.4f  %.0f %s/s", part * 100, r->loss,
             r->images_per_s * p->each, p->unit);
    int room = p->columns - p->cells - 20; /* "epoch 123/123  " and a blank column */
    fprintf(p->out, "epoch %3d/%-3d  %s  %.*s\033[K\r", r->epoch, p->epochs,
            bar_text(p, part, cells), room < 0 ? 0 : room, tail);
    fflush(p->out);
    p->drawn = true;
}

void progress_step(struct progress *p, const struct report *r, size_t done, size_t all)
{
    if (!p->out || !p->steps)
        return;
    int64_t now = now_ms();
    double part = (double)done / (double)all;
    if (now - p->last_ms < (p->bar ? BAR_EVERY_MS : LINE_EVERY_MS))
        return;
    p->last_ms = now;
    if (p->bar)
        draw_bar(p, r, part);
    else
        progress_say(p, "epoch %3d/%d  %3.0f %%  loss %.4f  %.0f %s/s", r->epoch,
                     p->epochs, part * 100, r->loss, r->images_per_s * p->each, p->unit);
}

void progress_test(struct progress *p, const struct report *r)
{
    if (!p->steps)
        return;
    if (isfinite(r->test_accuracy))
        progress_say(p, "step %" PRIu64 "  test loss %.4f  test accuracy %6.2f %%",
                     r->step, r->test_loss, r->test_accuracy);
    else
        progress_say(p, "step %" PRIu64 "  test loss %.6f", r->step, r->test_loss);
}

/* Keeps the epoch's full bar: a short run's would otherwise hardly be seen. */
void progress_epoch(struct progress *p, const struct report *r)
{
    char cells[3 * BAR_CELLS + 1], epoch[sizeof cells + 40], loss[64] = "",
                                                             speed[64] = "";
    if (!p->out || !p->steps)
        return;
    p->last_ms = p->bar ? 0 : now_ms(); /* show the next epoch's bar at once */
    if (p->bar)
        snprintf(epoch, sizeof epoch, "epoch %3d/%-3d  %s", r->epoch, p->epochs,
                 bar_text(p, 1, cells));
    else
        snprintf(epoch, sizeof epoch, "epoch %3d/%d", r->epoch, p->epochs);
    if (isfinite(r->loss)) { /* else only the test was left of it */
        snprintf(loss, sizeof loss, "  loss %.*f", isfinite(r->test_accuracy) ? 4 : 6,
                 r->loss);
        snprintf(speed, sizeof speed, "  %.0f %s/s", r->images_per_s * p->each, p->unit);
    }
    if (!isfinite(r->test_accuracy))
        progress_say(p, "%s%s  test loss %.6f%s", epoch, loss, r->test_loss, speed);
    else if (p->bar)
        progress_say(p, "%s%s  accuracy %6.2f %%%s", epoch, loss, r->test_accuracy,
                     speed);
    else
        progress_say(p, "%s%s  test loss %.4f  test accuracy %6.2f %%%s", epoch, loss,
                     r->test_loss, r->test_accuracy, speed);
}
