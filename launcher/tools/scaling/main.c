/* launcher/tools/scaling/main.c - ddprun-scaling: --scaling, which measures the program
 * at several numbers of ranks
 *
 * Each size runs ddprun itself with the given options, so that everything ddprun can do
 * can be measured: as a child, one after the other, which dies with the parent, or, with
 * --submit, as a batch job. The output of a run goes to a file; its rate, or its time,
 * into the table.
 */
#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "launcher/cli/cli.h"
#include "launcher/tools/scaling/growth.h"
#include "launcher/tools/script/script.h"
#include "launcher/tools/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LOCK_MS = 10000, LOCK_LOOK_MS = 20 };

struct measuring {
    const struct opts *opts;
    const char *ddprun; /* its path */
    struct work work;
    const char *folder;
    char *command;    /* as given by the user */
    char title[96];   /* of the plot */
    int64_t since_ms; /* the start of the first run; 0: none has been started */
};

/* --- the folder --------------------------------------------------------------------- */

/* Reserve the folder for this command: one with the table of another command is refused.
 */
static int reserve_folder(struct measuring *m, struct ddp_err *err)
{
    OWNED char *path = xasprintf("%s/command.txt", m->folder);
    OWNED char *old = NULL;
    size_t room = 0;
    if (mkdir(m->folder, 0777) < 0 && errno != EEXIST)
        return err_errno(err, "cannot make the folder '%s'", m->folder);
    SCOPED(close_file) FILE *f = fopen(path, "re");
    ssize_t len = f ? getdelim(&old, &room, '\0', f) : 0;
    if (len > 0) {
        old[len - 1] = '\0'; /* the final newline; the command may contain others */
        return strcmp(old, m->command) == 0
                   ? 0
                   : err_set(err,
                             "'%s' has the table of another command, '%.150s'; write "
                             "--scaling-dir DIR",
                             m->folder, old);
    }
    FILE *out = fopen(path, "we");
    if (!out || fprintf(out, "%s\n", m->command) < 0 || fclose(out) != 0)
        return err_errno(err, "cannot write '%s'", path);
    return 0;
}

/* Lock the folder: jobs of several sizes may end at once. If no lock can be taken (not
 * supported, or held by a crashed machine), the last writer wins. */
static int lock_folder(const char *folder)
{
    int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int64_t until = now_ms() + LOCK_MS;
    while (lock >= 0 && flock(lock, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK &&
           now_ms() < until)
        sleep_ms(LOCK_LOOK_MS);
    return lock;
}

static int record(struct measuring *m, const struct row *rows, int n, struct growth *t,
                  struct ddp_err *err)
{
    SCOPED(close_fd) __attribute__((unused)) int lock = lock_folder(m->folder);
    growth_finish(t);
    TRY(growth_load(t, m->folder, err));
    for (int i = 0; i < n; i++)
        growth_add(t, &rows[i]);
    return growth_save(t, m->folder, m->title, err);
}

/* --- one run ------------------------------------------------------------------------ */

/* The time that --timeout, which is for all runs together, leaves for the next one. */
static int64_t time_left_ms(const struct measuring *m)
{
    return m->opts->timeout_ms - (m->since_ms ? now_ms() - m->since_ms : 0);
}

/* --output-filename with a folder for this run: DIR/strong-4, or strong-4/%r.log for
 * %r.log. */
static char *own_output(const char *pattern, enum series series, int ranks)
{
    if (!strchr(pattern, '%'))
        return xasprintf("%s/%s-%d", pattern, series_names[series], ranks);
    const char *name = basename(pattern);
    return xasprintf("%.*s%s-%d/%s", (int)(name - pattern), pattern, series_names[series],
                     ranks, name);
}

/* "ddprun -np 4 <options> <program>". Of an option that is twice there the last one
 * counts.
 */
static int make_command(const struct measuring *m, enum series series, int ranks,
                        struct strv *argv, struct ddp_err *err)
{
    int per_node = m->opts->per_node;
    strv_push(argv, "ddprun");
    strv_push(argv, "-np");
    strv_pushf(argv, "%d", ranks);
    if (per_node) {
        strv_push(argv, "--nproc-per-node");
        strv_pushf(argv, "%d", per_node < ranks ? per_node : ranks);
        strv_push(argv, "--nnodes");
        strv_pushf(argv, "%d", (ranks + per_node - 1) / per_node);
    }
    strv_push_all(argv, m->opts->passed.v);
    if (m->opts->output_filename) {
        strv_push(argv, "--output-filename");
        strv_push_nodup(argv, own_output(m->opts->output_filename, series, ranks));
    }
    if (m->opts->timeout_ms) {
        int64_t left = time_left_ms(m);
        strv_push(argv, "--timeout");
        strv_pushf(argv, "%" PRId64 "ms", left > 0 ? left : 1);
    }
    strv_push(argv, "--");
    return work_command(m->opts->argv, series, ranks, argv, err);
}

/* In the child: exec; never returns. */
static void exec_child(const char *path, char *const *argv, int log, pid_t parent)
{
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(128 + SIGTERM); /* the parent died before prctl() */
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    execv(path, argv);
    dprintf(STDERR_FILENO, "ddprun: cannot start '%s': %s\n", path, strerror(errno));
    _exit(125);
}

/* Run it with all output to `path`. Returns the exit code, -1 with an error. */
static int run(const char *ddprun, char *const *argv, const char *path, double *seconds,
               struct ddp_err *err)
{
    int log = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666), status;
    if (log < 0)
        return err_errno(err, "cannot create '%s'", path);
    /* Ctrl-C is for the child: wait for its orderly end */
    void (*on_int)(int) = signal(SIGINT, SIG_IGN),
         (*on_quit)(int) = signal(SIGQUIT, SIG_IGN);
    int64_t start = now_ns();
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        signal(SIGINT, on_int);
        signal(SIGQUIT, on_quit);
        exec_child(ddprun, argv, log, parent);
    }
    close(log);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    signal(SIGINT, on_int);
    signal(SIGQUIT, on_quit);
    if (pid < 0)
        return err_spawn(err, "cannot fork");
    *seconds = (double)(now_ns() - start) / 1e9;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

enum { TAIL_LINES = 5 };

/* Find the rate in the output; if the run has failed, print its last lines on stderr. */
static void read_output(const char *path, struct rate *rate, bool failed)
{
    SCOPED(close_file) FILE *in = fopen(path, "re");
    OWNED char *line = NULL;
    char *tail[TAIL_LINES] = {0};
    size_t room = 0, n = 0;
    while (in && getline(&line, &room, in) > 0) {
        rate_read(rate, line);
        free(tail[n % TAIL_LINES]);
        tail[n++ % TAIL_LINES] = xstrdup(line);
    }
    for (size_t i = 0; i < TAIL_LINES; i++, n++) {
        if (failed && tail[n % TAIL_LINES])
            fprintf(stderr, "    %s", tail[n % TAIL_LINES]);
        free(tail[n % TAIL_LINES]);
    }
}

/* Run one size of one series, or of `both` (one rank is the same in both). */
static int measure(struct measuring *m, enum series series, int ranks, bool both,
                   void *table, struct ddp_err *err)
{
    struct growth *t = table;
    SCOPED(strv_finish) struct strv argv = {0};
    struct row rows[SERIES_COUNT] = {{.series = series, .ranks = ranks}};
    if (m->opts->timeout_ms && time_left_ms(m) <= 0) {
        fprintf(stderr, "ddprun: --timeout leaves no time for %d rank%s\n", ranks,
                ranks == 1 ? "" : "s");
        return 124; /* as a run that --timeout stops */
    }
    OWNED char *path = xasprintf("%s/%s-%d.log", m->folder, series_names[series], ranks);
    int code = make_command(m, series, ranks, &argv, err);
    if (code == 0)
        code = run(m->ddprun, argv.v, path, &rows[0].seconds, err);
    if (code > 0)
        fprintf(stderr, "ddprun: with %d rank%s it ended with %d; '%s' ends with\n",
                ranks, ranks == 1 ? "" : "s", code, path);
    if (code >= 0)
        read_output(path, &rows[0].rate, code > 0);
    if (code == 0) {
        rows[1] = rows[0];
        rows[1].series = SERIES_WEAK;
        code = record(m, rows, both ? 2 : 1, t, err);
    }
    if (code == 0) {
        fprintf(stderr, "ddprun: %s%s scaling, %d rank%s: %.2f s", series_names[series],
                both ? " and weak" : "", ranks, ranks == 1 ? "" : "s", rows[0].seconds);
        if (rows[0].rate.value > 0)
            fprintf(stderr, ", %.6g %s", rows[0].rate.value, rows[0].rate.unit);
        fputc('\n', stderr);
    }
    return code;
}

/* --- all sizes ---------------------------------------------------------------------- */

typedef int (*size_fn)(struct measuring *m, enum series series, int ranks, bool both,
                       void *arg, struct ddp_err *err);

/* Call `fn` for each size of each series; one rank is the same in both: once. */
static int for_each(struct measuring *m, size_fn fn, void *arg, struct ddp_err *err)
{
    int rc = 0;
    for (int s = 0; rc == 0 && s < SERIES_COUNT; s++) {
        for (int i = 0; rc == 0 && m->work.series[s] && i < m->work.nsizes; i++) {
            int ranks = m->work.sizes[i];
            bool both = ranks == 1 && m->work.series[SERIES_STRONG] &&
                        m->work.series[SERIES_WEAK];
            if (!both || s == SERIES_STRONG)
                rc = fn(m, (enum series)s, ranks, both, arg, err);
        }
    }
    return rc;
}

static int check_size(struct measuring *m, enum series series, int ranks, bool both,
                      void *arg, struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv argv = {0};
    int rc = make_command(m, series, ranks, &argv, err);
    if (rc == 0 && arg) {
        OWNED char *text = shell_join(argv.v);
        puts(text);
    }
    return rc;
}

static int start(struct measuring *m, const struct opts *opts, char *const *words,
                 struct ddp_err *err)
{
    *m =
        (struct measuring){.opts = opts, .ddprun = words[0], .folder = opts->scaling_dir};
    m->command = shell_join(opts->argv);
    const char *slash = strrchr(opts->argv[0], '/');
    const char *rest = slash ? m->command + (slash + 1 - opts->argv[0]) : m->command;
    bool plain =
        slash && strstr(m->command, slash) == m->command + (slash - opts->argv[0]);
    snprintf(m->title, sizeof m->title, "%.80s%s", plain ? rest : m->command,
             strlen(plain ? rest : m->command) > 80 ? " ..." : "");
    return work_read(opts->scaling, opts->argv, &m->work, err) < 0
               ? err_prefix(err, "--scaling")
               : for_each(m, check_size, NULL, err);
}

/* Run all sizes and print the table. Returns 0, or the exit code of the run that failed,
 * whose last lines have been printed; -1: nothing could be run or written. */
static int scaling_run(const struct opts *opts, char *const *words, struct ddp_err *err)
{
    struct measuring m;
    SCOPED(growth_finish) struct growth t = {0};
    int rc = start(&m, opts, words, err);
    if (rc == 0 && opts->dry_run) {
        rc = for_each(&m, check_size, &m, err);
    } else if (rc == 0 && (rc = reserve_folder(&m, err)) == 0) {
        m.since_ms = now_ms();
        rc = for_each(&m, measure, &t, err);
        growth_print(&t, stdout);
        if (t.n > 0)
            printf("\nin %s: scaling.csv, scaling.txt, scaling.svg\n", m.folder);
    }
    if (fflush(stdout) != 0 && rc == 0)
        rc = err_errno(err, "cannot write");
    free(m.command);
    return rc;
}

/* --- batch jobs --------------------------------------------------------------------- */

struct submission {
    const struct opts *opts;
    char *const *words;
};

/* Submit a job that runs this command with these sizes. */
static int submit_sizes(const struct submission *s, const char *sizes, int ranks,
                        const char *suffix, struct ddp_err *err)
{
    struct opts job = *s->opts;
    SCOPED(strv_finish) struct strv passed = {0};
    OWNED char *name =
        s->opts->job_name ? xasprintf("%s%s", s->opts->job_name, suffix) : NULL;
    strv_push_all(&passed, s->opts->passed.v);
    strv_push(&passed, "--scaling");
    strv_push(&passed, sizes);
    strv_push(&passed, "--scaling-dir");
    strv_push(&passed, s->opts->scaling_dir);
    job.passed = passed;
    job.np = ranks;
    job.job_name = name;
    return script_run(&job, s->words, err);
}

static int submit_size(struct measuring *m, enum series series, int ranks, bool both,
                       void *arg, struct ddp_err *err)
{
    char suffix[32];
    snprintf(suffix, sizeof suffix, "-%c%d", series_names[series][0], ranks);
    OWNED char *sizes =
        both ? xasprintf("%d", ranks) : xasprintf("%s:%d", series_names[series], ranks);
    return submit_sizes(arg, sizes, ranks, suffix, err);
}

/* A batch job per size, or with --script alone one script that runs all. */
static int scaling_submit(const struct opts *opts, char *const *words,
                          struct ddp_err *err)
{
    struct measuring m;
    struct submission s = {opts, words};
    int rc = start(&m, opts, words, err);
    if (rc == 0 && opts->submit)
        rc = for_each(&m, submit_size, &s, err);
    else if (rc == 0)
        rc = submit_sizes(&s, opts->scaling, m.work.sizes[m.work.nsizes - 1], "", err);
    free(m.command);
    return rc;
}

int tool_run(const struct opts *opts, char *const *argv, struct ddp_err *err)
{
    if (opts->script == SCHED_NONE && !opts->submit)
        return scaling_run(opts, argv, err);
    cli_warn(opts);
    return scaling_submit(opts, argv, err);
}
