/* launcher/plugins/observe/view/top.c - ddprun --top: the status of a job in a terminal
 *
 * Plain ANSI sequences; one screen of at least 80 columns, drawn again each second or
 * when a key is pressed. Without a terminal one screen is printed, of all ranks.
 */
#include "launcher/plugins/observe/view/series.h"
#include "launcher/plugins/observe/view/view.h"

#include "common/duration.h"
#include "common/json.h"
#include "common/mem.h"
#include "launcher/control/client.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* lines of waits; seconds: a shorter wait is part of every step */
enum { WAITS_MAX = 4, WAIT_S = 1 };

/* ms: for an answer; between two; from the first request to a sample with CPU times */
enum { ASK_MS = 5000, TURN_MS = 1000, FIRST_MS = 1300 };

struct top {
    int fd;                  /* to the job */
    bool live;               /* on a terminal */
    int columns, rows, used; /* used: rows that are drawn so far */
    size_t first;            /* the first rank shown */
    enum { BY_RANK, BY_CPU, BY_MEMORY, BY_QUIET, ORDERS } order;
    bool unfinished_only;
    struct series *series; /* owned: of rank 0's last lines; NULL: none */
    struct termios before;
    char keys[32]; /* a part of a key, the rest of which has not come */
    size_t nkeys;
};

static volatile sig_atomic_t stop;

static void on_stop(int sig)
{
    stop = 1;
}

/* --- one rank ----------------------------------------------------------------------- */

struct row {
    size_t rank;
    char state;
    double cpu, rss, quiet, key; /* key: the largest row is the first */
    bool straggles;
    const char *host, *last;
    const json_t *call; /* ["all_reduce #4 ...", seconds, waits]; NULL: not known */
};

static double value(const json_t *status, const char *list, size_t i)
{
    return json_number_value(json_array_get(json_object_get(status, list), i));
}

static const char *state_name(char c)
{
    static const struct {
        char c;
        const char *name;
    } names[] = {{'n', "not yet"}, {'x', "exited"}, {'f', "FAILED"}, {'k', "stopped"},
                 {'u', "unknown"}, {'R', "runs"},   {'S', "sleeps"}, {'D', "in I/O"},
                 {'T', "SIGSTOP"}, {'t', "traced"}, {'Z', "zombie"}, {'r', "runs"}};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        if (names[i].c == c)
            return names[i].name;
    }
    return "?";
}

static int by_key(const void *a, const void *b)
{
    const struct row *x = a, *y = b;
    return x->key < y->key ? 1 : x->key > y->key ? -1 : x->rank < y->rank ? -1 : 1;
}

static struct row *make_rows(const struct top *t, const json_t *status, size_t *nrows)
{
    static const char *const lists[] = {
        [BY_RANK] = "", [BY_CPU] = "cpu", [BY_MEMORY] = "rss", [BY_QUIET] = "quiet"};
    const char *states = text_or(status, "states", "");
    const json_t *hosts = json_object_get(status, "hosts");
    size_t n = strlen(states), k = 0;
    struct row *rows = xcalloc(n + 1, sizeof *rows);
    for (size_t r = 0; r < n; r++) {
        if (t->unfinished_only && strchr("xk", states[r]))
            continue;
        rows[k++] = (struct row){
            .rank = r,
            .state = states[r],
            .cpu = value(status, "cpu", r),
            .rss = value(status, "rss", r),
            .quiet = value(status, "quiet", r),
            .key = value(status, lists[t->order], r),
            .straggles = value(status, "straggles", r) > 0,
            .host = text_or(json_array_get(hosts, (size_t)value(status, "host", r)),
                            "host", ""),
            .last = json_string_value(json_array_get(json_object_get(status, "last"), r)),
            .call = json_array_get(json_object_get(status, "call"), r)};
    }
    qsort(rows, k, sizeof *rows, by_key);
    *nrows = k;
    return rows;
}

/* --- drawing ------------------------------------------------------------------------ */

/* Columns of UTF-8 text, cut at `room`; bytes that would move the cursor become '?'. */
static void put_cut(FILE *out, const char *s, int room)
{
    for (int used = 0; *s; s++) {
        bool follows = ((unsigned char)*s & 0xc0) == 0x80;
        if (!follows && used++ >= room)
            break;
        bool c1 = (unsigned char)*s == 0xc2 && (s[1] & 0xe0) == 0x80; /* U+0080 to 9F */
        s += c1;
        fputc(c1 || (unsigned char)*s < 32 || *s == 127 ? '?' : *s, out);
    }
}

static void end_line(struct top *t, FILE *out)
{
    fputs(t->live ? "\033[K\n" : "\n", out);
    t->used++;
}

static void put_line(struct top *t, const char *line, FILE *out)
{
    put_cut(out, line, t->columns);
    end_line(t, out);
}

static void put_size(char *s, size_t size, double kib)
{
    static const char units[] = "KMGTP";
    size_t u = 0;
    while (kib >= 1000 && u + 2 < sizeof units) {
        kib /= 1024;
        u++;
    }
    snprintf(s, size, kib < 10 && u > 0 ? "%.1f%c" : "%.0f%c", kib, units[u]);
}

static void put_span(char *s, size_t size, double seconds)
{
    if (seconds < 0)
        snprintf(s, size, "-");
    else if (seconds < 100)
        snprintf(s, size, "%.0fs", seconds);
    else if (seconds < 6000)
        snprintf(s, size, "%.0fm", seconds / 60);
    else
        snprintf(s, size, "%.0fh", seconds / 3600);
}

static void draw_head(struct top *t, const json_t *status, FILE *out)
{
    char line[512], mem[32], total[32], since[16];
    size_t i, count[128] = {0};
    const json_t *h;
    for (const char *p = text_or(status, "states", ""); *p; p++)
        count[*p & 127]++;
    size_t ended = count['x'] + count['k'], bad = count['f'] + count['u'];
    put_span(since, sizeof since, number_of(status, "t"));
    int used = snprintf(line, sizeof line, "job %s  %s  %s  attempt %lld",
                        text_or(status, "job", ""), text_or(status, "state", ""), since,
                        int_of(status, "attempt"));
    if (int_of(status, "attempts") > 0)
        snprintf(line + used, sizeof line - (size_t)used, " of %lld",
                 int_of(status, "attempts"));
    put_line(t, line, out);
    put_line(t, text_or(status, "command", ""), out);
    size_t all = strlen(text_or(status, "states", ""));
    snprintf(line, sizeof line, "ranks %zu: %zu run, %zu exited, %zu failed", all,
             all - ended - bad - count['n'], ended, bad);
    put_line(t, line, out);
    json_array_foreach (json_object_get(status, "hosts"), i, h) {
        if (i >= 4)
            break;
        const json_t *m = json_object_get(h, "mem"), *gpus = json_object_get(h, "gpus"),
                     *g;
        put_size(mem, sizeof mem, json_number_value(json_array_get(m, 0)));
        put_size(total, sizeof total, json_number_value(json_array_get(m, 1)));
        int n = snprintf(line, sizeof line, "%-16.16s %-8s", text_or(h, "host", ""),
                         text_or(h, "state", ""));
        if (m)
            n += snprintf(line + n, sizeof line - (size_t)n,
                          " CPU %3.0f %%  memory %s of %s", number_of(h, "cpu"), mem,
                          total);
        size_t k;
        json_array_foreach (gpus, k, g) {
            if ((size_t)n + 20 < sizeof line)
                n += snprintf(line + n, sizeof line - (size_t)n, "  GPU%zu %.0f %%", k,
                              json_number_value(json_array_get(g, 0)));
        }
        put_line(t, line, out);
    }
    if (*text_or(status, "failure", ""))
        put_line(t, text_of(status, "failure"), out);
}

/* Rank 0's last line, if it has numbers as those of the page. */
static void take_numbers(struct top *t, const json_t *status)
{
    const char *line =
        json_string_value(json_array_get(json_object_get(status, "last"), 0));
    if (t->series && line)
        series_line(t->series, 0, line, strlen(line), number_of(status, "t"));
}

/* "step 120  loss 0.4711  lr 0.0003": the last of each, if there are any. */
static void draw_numbers(struct top *t, FILE *out)
{
    char line[512] = "";
    const struct point *points;
    const char *name;
    size_t n, used = 0;
    for (size_t i = 0; t->series && series_get(t->series, i, &name, &points, &n); i++) {
        bool share = strcmp(name, "progress") == 0;
        if (n > 0 && used < sizeof line)
            used += (size_t)snprintf(
                line + used, sizeof line - used, "%s%s %.6g%s", used ? "  " : "", name,
                points[n - 1].value * (share ? 100 : 1), share ? " %" : "");
    }
    if (used > 0)
        put_line(t, line, out);
}

static bool are_many(const char *ranks)
{
    return strpbrk(ranks, ",-") != NULL;
}

/* "ranks 0,2-3 wait 12s in all_reduce #4 of the default group for rank 1" for each wait.
 */
static void draw_waits(struct top *t, const json_t *status, FILE *out)
{
    const json_t *w;
    size_t i;
    json_array_foreach (json_object_get(status, "waits"), i, w) {
        if (i == WAITS_MAX)
            break;
        const char *who = text_or(w, "ranks", ""), *whom = text_or(w, "for", "");
        char since[16];
        put_span(since, sizeof since, number_of(w, "s"));
        OWNED char *line =
            *text_or(w, "text", "")
                ? xstrdup(text_of(w, "text"))
                : xasprintf("rank%s %s wait%s %s in %s%s%s", are_many(who) ? "s" : "",
                            who, are_many(who) ? "" : "s", since, text_or(w, "in", ""),
                            !*whom           ? ": all have entered it"
                            : are_many(whom) ? " for ranks "
                                             : " for rank ",
                            whom);
        put_line(t, line, out);
    }
}

/* The rank's last line of output; the collective while the rank waits in one. */
static char *doing(const struct row *r)
{
    char since[16];
    double s = json_number_value(json_array_get(r->call, 1));
    if (!json_is_true(json_array_get(r->call, 2)) || s < WAIT_S)
        return xstrdup(r->last ? r->last : "");
    put_span(since, sizeof since, s);
    const char *name = json_string_value(json_array_get(r->call, 0));
    return xasprintf("waits %s in %s", since, name ? name : "?");
}

static void draw_row(struct top *t, const struct row *r, FILE *out)
{
    OWNED char *what = doing(r);
    char cpu[16] = "-", rss[16] = "-", quiet[16];
    if (r->rss > 0) { /* measured */
        snprintf(cpu, sizeof cpu, "%.0f", r->cpu);
        put_size(rss, sizeof rss, r->rss);
    }
    put_span(quiet, sizeof quiet, r->quiet);
    bool late = r->straggles && strchr("rRS", r->state);
    bool loud = t->live && (late || strchr("fuTDZ", r->state));
    fprintf(out, "%s%5zu %-12.12s %-7s %4s %6s %5s  %s", loud ? "\033[1;31m" : "",
            r->rank, r->host, late ? "late" : state_name(r->state), cpu, rss, quiet,
            loud ? "\033[0m" : "");
    put_cut(out, what, t->columns - 47);
    end_line(t, out);
}

static void draw(struct top *t, const json_t *status, FILE *out)
{
    static const char *const orders[] = {"rank", "CPU", "memory", "silence"};
    size_t nrows;
    OWNED struct row *rows = make_rows(t, status, &nrows);
    t->used = 0;
    if (t->live)
        fputs("\033[H", out);
    draw_head(t, status, out);
    draw_numbers(t, out);
    draw_waits(t, status, out);
    fprintf(out, "%s", t->live ? "\033[7m" : "");
    char head[256];
    snprintf(head, sizeof head,
             " RANK %-12s %-7s CPU%%    RSS QUIET  LAST LINE, OR WAITS", "HOST", "STATE");
    fprintf(out, "%-*.*s", t->columns, t->columns, head);
    fputs(t->live ? "\033[0m" : "", out);
    end_line(t, out);
    int left = t->rows - t->used - 1; /* the last row tells the keys */
    size_t room = !t->live ? nrows : left > 1 ? (size_t)left : 1;
    if (t->first + room > nrows)
        t->first = nrows > room ? nrows - room : 0;
    for (size_t i = t->first; i < nrows && i < t->first + room; i++)
        draw_row(t, &rows[i], out);
    if (t->live) {
        fputs("\033[J", out);
        snprintf(head, sizeof head,
                 "q quit  up/down scroll  s sort (by %s)  u unfinished only%s",
                 orders[t->order], t->unfinished_only ? " (on)" : "");
        fprintf(out, "\033[%d;1H", t->rows);
        put_cut(out, head, t->columns);
        fputs("\033[K", out);
    }
    fflush(out);
}

/* --- keys --------------------------------------------------------------------------- */

/* False: quit. */
static bool handle_key(struct top *t, const char *key)
{
    size_t page = t->rows > 12 ? (size_t)t->rows - 10 : 1;
    if (strcmp(key, "q") == 0 || strcmp(key, "\033") == 0)
        return false;
    if (strcmp(key, "\033[B") == 0 || strcmp(key, "j") == 0)
        t->first++;
    else if (strcmp(key, "\033[A") == 0 || strcmp(key, "k") == 0)
        t->first -= t->first > 0;
    else if (strcmp(key, "\033[6~") == 0 || strcmp(key, " ") == 0)
        t->first += page;
    else if (strcmp(key, "\033[5~") == 0)
        t->first -= t->first < page ? t->first : page;
    else if (strcmp(key, "\033[H") == 0 || strcmp(key, "g") == 0)
        t->first = 0;
    else if (strcmp(key, "\033[F") == 0 || strcmp(key, "G") == 0)
        t->first = SIZE_MAX / 2; /* draw() limits it */
    else if (strcmp(key, "s") == 0)
        t->order = (t->order + 1) % ORDERS;
    else if (strcmp(key, "u") == 0)
        t->unfinished_only = !t->unfinished_only;
    return true;
}

/* The first key's bytes: one, or an escape sequence. 0: a part of it is missing; `cut`:
 * an escape at the end may be one. */
static size_t key_length(const char *keys, bool cut)
{
    if (keys[0] != '\033')
        return 1;
    if (!keys[1])
        return cut ? 0 : 1;
    size_t n = 1;
    if (keys[1] == '[')
        n = 2 + strspn(keys + 2, "0123456789;");
    else if (keys[1] == 'O') /* F1, and arrows in another mode */
        n = 2;
    return keys[n] ? n + 1 : 0;
}

/* All keys that have come since the last read. */
static bool handle_keys(struct top *t)
{
    char *keys = t->keys, key[sizeof t->keys];
    size_t most = sizeof t->keys - 1, at = 0, length;
    ssize_t n = read(STDIN_FILENO, keys + t->nkeys, most - t->nkeys);
    bool on = n > 0;
    t->nkeys += on ? (size_t)n : 0;
    keys[t->nkeys] = '\0';
    bool cut = t->nkeys == most;
    while (on && at < t->nkeys && (length = key_length(keys + at, cut)) > 0) {
        snprintf(key, sizeof key, "%.*s", (int)length, keys + at);
        on = handle_key(t, key);
        at += length;
    }
    t->nkeys = cut && at == 0 ? 0 : t->nkeys - at; /* no key is as long */
    memmove(keys, keys + at, t->nkeys);
    return on;
}

static void terminal_on(struct top *t)
{
    struct termios raw;
    tcgetattr(STDIN_FILENO, &t->before);
    raw = t->before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VSUSP] = _POSIX_VDISABLE; /* Ctrl-Z would leave all this to the shell */
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    /* the alternate screen, no cursor; lines that are too long, as of wide characters or
     * in a narrow window, end at its edge */
    fputs("\033[?1049h\033[?25l\033[?7l", stdout);
    struct sigaction act = {.sa_handler = on_stop};
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    sigaction(SIGHUP, &act, NULL);
}

static void terminal_off(const struct top *t)
{
    fputs("\033[?7h\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    tcsetattr(STDIN_FILENO, TCSANOW, &t->before);
}

static void measure(struct top *t)
{
    struct winsize size;
    t->columns = 80;
    t->rows = 24;
    if (t->live && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
        t->columns = size.ws_col < 50 ? 50 : size.ws_col;
        t->rows = size.ws_row < 8 ? 8 : size.ws_row;
    }
}

/* A line follows the screen: why it is over. */
static int run(struct top *t, struct ddp_err *err)
{
    json_auto_t *request = json_pack("{s:s, s:b}", "do", "status", "calls", true);
    json_t *status;
    bool on = true;
    if (!t->live && (status = control_ask(t->fd, request, now_ms() + ASK_MS, err))) {
        json_decref(status); /* from now on the agents measure */
        usleep(FIRST_MS * 1000);
    }
    while (on && !stop &&
           (status = control_ask(t->fd, request, now_ms() + ASK_MS, err))) {
        int64_t next_ms = now_ms() + TURN_MS;
        measure(t);
        take_numbers(t, status);
        draw(t, status, stdout);
        struct pollfd keys = {.fd = STDIN_FILENO, .events = POLLIN};
        for (int64_t left; on && t->live && !stop && (left = next_ms - now_ms()) > 0;) {
            if (poll(&keys, 1, (int)left) > 0) {
                on = handle_keys(t);
                draw(t, status, stdout);
            }
        }
        on &= t->live;
        json_decref(status);
    }
    return on && !stop ? -1 : 0;
}

int top_run(const char *job)
{
    struct ddp_err err = {""};
    struct top t = {.fd = control_connect(job, &err)};
    if (t.fd < 0) {
        fprintf(stderr, "ddprun: %s\n", err.text);
        return 2;
    }
    t.series = series_create(NULL, &err);
    t.live = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    if (t.live)
        terminal_on(&t);
    int rc = run(&t, &err);
    if (t.live)
        terminal_off(&t);
    if (rc < 0)
        fprintf(t.live ? stdout : stderr, "ddprun: %s\n", err.text);
    close(t.fd);
    if (t.series)
        series_destroy(t.series);
    return rc < 0 && !t.live ? 1 : 0;
}
