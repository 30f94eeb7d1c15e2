#include "tests/support/suite.h"

#include "common/mem.h"
#include "common/svg_plot.h"
#include "worker/report/metrics.h"
#include "worker/report/plot.h"
#include "worker/report/progress.h"

#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static char *read_text(const char *path)
{
    char *text = xcalloc(1, 1 << 20);
    FILE *f = fopen(path, "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_uint_lt(fread(text, 1, 1 << 20, f), 1 << 20);
    fclose(f);
    return text;
}

static size_t occurrences(const char *text, const char *what)
{
    size_t n = 0;
    for (; (text = strstr(text, what)); text++)
        n++;
    return n;
}

/* ---- the picture ---- */

static const struct {
    double lo, hi;
    int room, n;
    double first, second;
} axes[] = {
    {0, 20, 8, 5, 0, 5},   {0, 1, 8, 6, 0, 0.2},         {93, 100, 6, 4, 94, 96},
    {0, 100, 6, 6, 0, 20}, {0.0, 0.003, 6, 4, 0, 0.001}, {7, 9, 8, 5, 7, 7.5},
};

LOOP_TEST(ticks_are_round_and_few, ARRAY_LEN(axes))
{
    double ticks[16];
    int n = svg_plot_ticks(axes[_i].lo, axes[_i].hi, ticks, axes[_i].room);
    ck_assert_int_eq(n, axes[_i].n);
    ck_assert_double_eq_tol(ticks[0], axes[_i].first, 1e-12);
    ck_assert_double_eq_tol(ticks[1], axes[_i].second, 1e-12);
    ck_assert_double_le(ticks[n - 1], axes[_i].hi + 1e-12);
}

/* steps a run may have: none, one, a few, and more than are drawn */
static const size_t step_counts[] = {0, 1, 10, 5000};

LOOP_TEST(a_picture_has_its_curves_and_nothing_unsound, ARRAY_LEN(step_counts))
{
    struct history h = {0};
    size_t n = step_counts[_i];
    for (size_t i = 0; i < n; i++)
        history_step(&h, (double)(i + 1) / 5, 2.0 / (double)(i + 1));
    for (size_t i = 5; i <= n; i += 5)
        history_epoch(&h, &(struct report){.epoch = (int)i / 5,
                                           .loss = 1,
                                           .test_loss = 0.5,
                                           .train_accuracy = 90,
                                           .test_accuracy = 95});
    char *dir = temp_dir(), *path = xasprintf("%s/p.svg", dir);
    struct ddp_err err;
    ck_ok(plot_write(path, "cnn\xff on <a & \xc3\xa9>", &h, &err), err);
    char *text = read_text(path);
    ck_assert_ptr_nonnull(strstr(text, "cnn on &lt;a &amp; \xc3\xa9&gt;"));
    ck_assert_ptr_null(strstr(text, "nan"));
    ck_assert_ptr_null(strstr(text, "inf"));
    ck_assert_str_eq(text + strlen(text) - 7, "</svg>\n");
    ck_assert_uint_eq(occurrences(text, "<circle class=\"test\""), h.nepochs * 2);
    ck_assert_uint_eq(occurrences(text, "epoch 1: 95%"), h.nepochs > 0);
    const char *points = strstr(text, "<polyline class=\"steps\" points=\"") + 32;
    char *drawn = xstrndup(points, strcspn(points, "\""));
    ck_assert_uint_eq(occurrences(drawn, ","),
                      n > HISTORY_STEPS ? 625 : n); /* 8 in one */
    free(drawn);
    free(text);
    free(path);
    free(dir);
    history_finish(&h);
}

TEST(the_scale_is_that_of_what_is_drawn)
{
    struct history h = {0};
    for (int i = 0; i < 4000; i++) /* the means of neighbours are all about 5 */
        history_step(&h, (i + 1) / 1000.0, i % 2 ? 10 : 0.0001);
    char *dir = temp_dir(), *path = xasprintf("%s/p.svg", dir);
    struct ddp_err err;
    ck_ok(plot_write(path, "", &h, &err), err);
    char *text = read_text(path);
    ck_assert_ptr_nonnull(strstr(text, ">5</text>"));
    ck_assert_ptr_null(strstr(text, ">0.001</text>"));
    free(text);
    free(path);
    free(dir);
    history_finish(&h);
}

TEST(a_long_run_keeps_means_of_its_steps)
{
    enum { ALL = 5 * HISTORY_STEPS + 3 };
    struct history h = {0};
    for (int i = 0; i < ALL; i++)
        history_step(&h, i, 2 * i);
    ck_assert_uint_lt(h.nsteps, HISTORY_STEPS);
    ck_assert_uint_eq(h.nsteps * h.each + h.nopen, ALL);
    for (size_t i = 0; i < h.nsteps; i++) {
        double middle = (double)(i * h.each) + (double)(h.each - 1) / 2;
        ck_assert_double_eq_tol(h.at[i], middle, 1e-6);
        ck_assert_double_eq_tol(h.loss[i], 2 * middle, 1e-6);
    }
    history_finish(&h);
}

TEST(a_picture_that_cannot_be_written_says_so)
{
    struct history h = {0};
    struct ddp_err err;
    ck_assert_int_eq(plot_write("/nonexistent/none/p.svg", "", &h, &err), -1);
    ck_assert_str_eq(
        err.text, "cannot create '/nonexistent/none/p.svg': No such file or directory");
    ck_assert_int_eq(plot_write("/dev/full", "", &h, &err), -1);
    ck_assert_str_eq(err.text, "cannot write '/dev/full': No space left on device");
}

/* ---- the log ---- */

TEST(each_line_of_the_log_is_json)
{
    char *dir = temp_dir(), *path = xasprintf("%s/m.jsonl", dir);
    struct metrics m;
    struct ddp_err err;
    ck_ok(metrics_open(&m, path, false, &err), err);
    metrics_line(&m, "run", &(struct metrics_field){"model", json_string("a\"b")}, 1);
    struct report step = {7, 2, 0.25, 0.1, 1000, 1.5, 0, 0, 0, 0};
    metrics_report(&m, METRICS_STEP, &step);
    struct report epoch = {.step = 8, .epoch = 2, .loss = NAN, .test_accuracy = 97.5};
    metrics_report(&m, METRICS_EPOCH, &epoch);
    ck_ok(metrics_close(&m, &err), err);
    ck_ok(metrics_open(&m, path, true, &err), err); /* goes on */
    metrics_report(&m, METRICS_STEP, &step);
    ck_ok(metrics_close(&m, &err), err);

    char *text = read_text(path), *rest = text, *line;
    static const char *const kinds[] = {"run", "step", "epoch", "step"};
    size_t n = 0;
    while ((line = strsep(&rest, "\n")) && *line) {
        json_t *row = json_loads(line, 0, NULL);
        ck_assert_msg(row != NULL, "not JSON: %s", line);
        ck_assert_str_eq(json_string_value(json_object_get(row, "kind")), kinds[n]);
        if (n == 1) {
            ck_assert_int_eq(json_integer_value(json_object_get(row, "step")), 7);
            ck_assert_double_eq(json_number_value(json_object_get(row, "loss")), 0.25);
        }
        if (n == 2)
            ck_assert(json_is_null(json_object_get(row, "loss")));
        json_decref(row);
        n++;
    }
    ck_assert_uint_eq(n, ARRAY_LEN(kinds));
    free(text);
    free(path);
    free(dir);
}

TEST(a_log_on_a_full_disk_is_reported_at_the_end)
{
    struct metrics m;
    struct ddp_err err;
    ck_ok(metrics_open(&m, "/dev/full", false, &err), err);
    metrics_line(&m, "run", NULL, 0);
    ck_assert_int_eq(metrics_close(&m, &err), -1);
    ck_assert_str_eq(err.text,
                     "the log '/dev/full' is not complete: No space left on device");
}

/* ---- what is shown ---- */

/* All of it, and closes the file. */
static char *shown_by(FILE *out)
{
    char *shown = NULL;
    size_t size = 0;
    rewind(out);
    ck_assert_int_gt(getdelim(&shown, &size, '\0', out), 0);
    fclose(out);
    return shown;
}

TEST(a_pipe_gets_whole_lines)
{
    FILE *out = tmpfile();
    struct progress p;
    progress_init(&p, out, PROGRESS_LINES, 3);
    struct report step = {.step = 1, .epoch = 1, .loss = 2, .images_per_s = 10};
    progress_step(&p, &step, 1, 4);
    struct report epoch = {.epoch = 1, .loss = 1.5, .test_accuracy = 90};
    progress_epoch(&p, &epoch);
    epoch.loss = epoch.images_per_s = (double)NAN;
    progress_epoch(&p, &epoch);
    progress_gap(&p);
    progress_gap(&p);
    progress_say(&p, "end %d", 1);
    char *shown = shown_by(out);
    ck_assert_ptr_null(strchr(shown, '\r'));
    ck_assert_ptr_null(strchr(shown, '\033'));
    ck_assert_int_eq(strncmp(shown, "epoch   1/3  loss 1.5000", 24), 0); /* no step */
    ck_assert_ptr_nonnull(strstr(shown, "images/s\nepoch   1/3  test loss"));
    ck_assert_ptr_nonnull(strstr(shown, "test accuracy  90.00 %\n\nend 1\n"));
    free(shown);
}

TEST(a_bar_is_taken_away_before_a_line)
{
    FILE *out = tmpfile();
    struct progress p;
    progress_init(&p, out, PROGRESS_BAR, 3);
    struct report step = {.step = 1, .epoch = 2, .loss = 2, .images_per_s = 10};
    progress_step(&p, &step, 1, 4);
    progress_step(&p, &step, 2, 4); /* too soon to be drawn */
    progress_say(&p, "end");
    char *shown = shown_by(out);
    ck_assert_uint_eq(occurrences(shown, "epoch   2/3"), 1);
    ck_assert_ptr_nonnull(strstr(shown, " 25 %"));
    ck_assert_ptr_nonnull(strstr(shown, "\033[K\r\033[Kend\n"));
    free(shown);
}

/* The columns of the bar that `out` gets by itself; 0: none. Closes it. */
static int bar_on(FILE *out)
{
    struct progress p;
    progress_init(&p, out, PROGRESS_AUTO, 1);
    fclose(out);
    return p.bar ? p.columns : 0;
}

TEST(a_terminal_gets_a_bar_of_its_width)
{
    int ends[2], terminal = posix_openpt(O_RDWR | O_NOCTTY);
    ck_assert_int_eq(ioctl(terminal, TIOCSWINSZ, &(struct winsize){24, 90, 0, 0}), 0);
    ck_assert_int_eq(bar_on(fdopen(terminal, "w")), 90);
    ck_assert_int_eq(pipe(ends), 0);
    int copy = dup(ends[1]);
    ck_assert_int_eq(bar_on(fdopen(ends[1], "w")), 0);
    setenv("DDPRUN_COLUMNS", "100", 1); /* the launcher's, which the pipe leads to */
    ck_assert_int_eq(bar_on(fdopen(copy, "w")), 100);
    ck_assert_int_eq(bar_on(tmpfile()), 0);
    close(ends[0]);
}

TEST(a_full_bar_stays_for_each_epoch)
{
    FILE *out = tmpfile();
    struct progress p;
    progress_init(&p, out, PROGRESS_BAR, 20);
    struct report epoch = {
        .epoch = 7, .loss = 1.5, .test_accuracy = 90, .images_per_s = 12345};
    progress_epoch(&p, &epoch);
    char *shown = shown_by(out);
    ck_assert_ptr_nonnull(strstr(shown, p.blocks ? "\u2501  loss" : "#  loss"));
    ck_assert_ptr_nonnull(strstr(shown, "90.00 %  12345 images/s\n"));
    size_t columns = 0; /* bytes that go on with a character do not count */
    for (const char *c = shown; *c && *c != '\n'; c++)
        columns += (*c & 0xc0) != 0x80;
    ck_assert_uint_lt(columns, (size_t)p.columns);
    free(shown);
}

TEST(other_ranks_are_silent)
{
    struct progress p = {0};
    struct metrics m = {0};
    struct report step = {0};
    struct report epoch = {0};
    struct ddp_err err;
    progress_say(&p, "%s", "not shown");
    progress_step(&p, &step, 1, 2);
    progress_epoch(&p, &epoch);
    metrics_report(&m, METRICS_STEP, &step);
    metrics_report(&m, METRICS_EPOCH, &epoch);
    ck_ok(metrics_close(&m, &err), err);
}
