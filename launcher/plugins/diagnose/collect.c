/* launcher/plugins/diagnose/collect.c - see collect.h
 *
 * The requests go to all ranks first, then it waits for all answers, so that ranks which
 * do not answer cost one deadline together. A Python rank writes its stacks in a signal
 * handler: when the signal is neither pending nor blocked any more, the text is complete.
 * A process is only sent the signal if it catches it, and still has our file open.
 */
#include "launcher/plugins/diagnose/collect.h"

#include "common/duration.h"
#include "common/json.h"
#include "common/mem.h"
#include "launcher/plugins/diagnose/mpi_trace.h"
#include "launcher/plugins/diagnose/native.h"
#include "launcher/plugins/diagnose/place.h"
#include "launcher/plugins/diagnose/proc.h"
#include "launcher/plugins/diagnose/rank_files.h"
#include "launcher/plugins/diagnose/ras.h"
#include "launcher/plugins/diagnose/sockets.h"
#include "launcher/plugins/diagnose/stacks.h"
#include "launcher/plugins/diagnose/trace.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As in preload/rank/sitecustomize.py. */
enum { STACKS_SIGNAL = 61, STACKS_FD = 62 };

/* ms: for answers of all ranks, the same if a node is so busy that they get no CPU; and
 * from the start to the end of the debugger's stacks of all other ranks */
enum { FIRST_MS = 500, ANSWER_MS = 2000, NATIVE_MS = 8000 };
enum { TREE_MAX = 64, STACKS_MAX = 4 << 20 };

struct subject {
    struct collect_rank is;
    json_t *out;  /* borrowed from the result */
    pid_t target; /* its process that is described */
    char *stem;   /* owned: of the files of `target`; NULL: it has none */
    struct rank_trace trace;
    off_t before; /* size of its file of stacks when asked; -1: not asked */
    bool stacks_wait;
    pid_t thread; /* that is to write its stacks */
    json_t *in_c; /* owned: what a debugger says of a Python rank; NULL: not asked */
};

/* --- its collectives ---------------------------------------------------------------- */

static void find_target(const char *folder, struct dirent *const *files, int nfiles,
                        struct subject *s)
{
    pid_t below[3]; /* a shell that waits for one program */
    s->stem = rank_stem(folder, files, nfiles, s->is.rank, s->is.pid, &s->target);
    while (!s->stem && proc_tree(s->target, below, 3) == 2)
        s->target = below[1];
}

static void take_library(struct subject *s)
{
    OWNED char *text = s->stem ? rank_file(s->stem, "calls", 0, 1 << 20) : NULL;
    if (text)
        trace_of_library(text, wall_ns(), s->out);
}

static void take_mpi(struct subject *s)
{
    OWNED struct mpi_calls_file *f =
        s->stem ? (void *)rank_file(s->stem, "mpi", 0, sizeof *f) : NULL;
    if (f)
        trace_of_mpi(f, now_ms(), s->out);
}

/* What it writes when it makes a process group. */
static void take_groups(struct subject *s, const char *groups)
{
    struct stat st;
    OWNED char *path = xasprintf("%s.groups", s->stem);
    int64_t at_ms = stat(path, &st) == 0
                        ? st.st_mtim.tv_sec * INT64_C(1000) + st.st_mtim.tv_nsec / 1000000
                        : 0;
    trace_of_groups(groups, wall_ns() / 1000000 - at_ms, s->out);
}

static void take_trace(struct subject *s, const char *groups)
{
    if (s->trace.sock >= 0) {
        close(s->trace.sock);
        s->trace.sock = -1;
        json_object_set_new(s->out, "no_calls",
                            json_string("its control plane does not answer"));
        return;
    }
    const char *body = rank_trace_body(&s->trace);
    if (body)
        trace_of_torch(body, groups, wall_ns(), s->out);
}

/* --- stacks that Python writes ------------------------------------------------------ */

static bool catches(const struct subject *s)
{
    char link[16], own[64], path[512];
    snprintf(link, sizeof link, "fd/%d", STACKS_FD);
    snprintf(own, sizeof own, "%d.%d.stacks", s->is.rank, (int)s->target);
    proc_link(s->target, link, path, sizeof path);
    const char *name = strrchr(path, '/');
    return name && strcmp(name + 1, own) == 0 &&
           proc_signals(s->target, "SigCgt") >> (STACKS_SIGNAL - 1) & 1;
}

/* In uninterruptible sleep the main thread takes no signal, but any thread can write
 * the stacks of all. Some waits in the kernel, as for a file server, become
 * uninterruptible only when the signal comes: ask_other_thread(). */
static pid_t thread_of(pid_t pid, char state)
{
    char path[32];
    pid_t found = pid;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    SCOPED(close_folder) DIR *dir = state == 'D' ? opendir(path) : NULL;
    for (struct dirent *d; dir && found == pid && (d = readdir(dir));) {
        pid_t tid = (pid_t)atoi(d->d_name);
        if (tid > 0 && tid != pid && proc_state(tid) == 'S')
            found = tid;
    }
    return found;
}

static void no_stacks(struct subject *s, const char *why)
{
    json_object_set_new(s->out, "no_stacks", json_string(why));
}

static void ask_stacks(struct subject *s)
{
    OWNED char *path = xasprintf("%s.stacks", s->stem);
    struct stat st;
    if (stat(path, &st) == 0 && catches(s)) {
        s->before = st.st_size;
        s->stacks_wait = true;
        s->thread = thread_of(s->target, proc_state(s->target));
        syscall(SYS_tgkill, s->target, s->thread, STACKS_SIGNAL);
    }
}

static void ask_other_thread(struct subject *s)
{
    if (s->thread != s->target || proc_state(s->target) != 'D')
        return;
    s->thread = thread_of(s->target, 'D');
    if (s->thread != s->target)
        syscall(SYS_tgkill, s->target, s->thread, STACKS_SIGNAL);
}

static bool stacks_written(const struct subject *s)
{
    uint64_t bit = UINT64_C(1) << (STACKS_SIGNAL - 1);
    OWNED char *path = xasprintf("%s.stacks", s->stem);
    struct stat st;
    bool grown = stat(path, &st) == 0 && st.st_size > s->before;
    return grown && !(proc_signals(s->thread, "SigPnd ShdPnd SigBlk") & bit);
}

static void take_stacks(struct subject *s)
{
    OWNED char *text = rank_file(s->stem, "stacks", s->before, STACKS_MAX);
    json_auto_t *threads = stacks_of_python(text ? text : "");
    if (json_array_size(threads) > 0)
        json_object_set(s->out, "threads", threads);
    else
        no_stacks(s, "its interpreter does not answer");
}

/* Of mpi4py and the like Python's stack has no frame: a debugger tells the call of MPI.
 */
static bool may_wait_in_c(const struct subject *s)
{
    return json_object_get(s->out, "threads") && !place_of(s->out).op &&
           proc_maps(s->target, "/libmpi");
}

/* Its main thread in C becomes the last of its threads. */
static void take_in_c(struct subject *s)
{
    json_t *thread = json_array_get(json_object_get(s->in_c, "threads"), 0);
    if (thread) {
        json_object_set_new(thread, "in_c", json_true());
        json_array_append(json_object_get(s->out, "threads"), thread);
    }
    json_decref(s->in_c);
}

/* --- all ---------------------------------------------------------------------------- */

static void describe_below(struct subject *s)
{
    pid_t below[TREE_MAX];
    size_t n = proc_tree(s->is.pid, below, TREE_MAX);
    json_auto_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_auto_t *process = json_object();
        if (below[i] != s->target && proc_describe(below[i], process))
            json_array_append(list, process);
    }
    if (json_array_size(list) > 0)
        json_object_set(s->out, "below", list);
}

static void await_answers(struct subject *subjects, size_t n, struct rank_trace *ras,
                          int64_t ms)
{
    int64_t until = now_ms() + ms;
    bool waits = true;
    for (int pause_us = 0; waits && now_ms() < until;) {
        usleep((useconds_t)pause_us);
        pause_us = pause_us == 0 ? 300 : pause_us < 10000 ? pause_us * 2 : pause_us;
        waits = rank_trace_read(ras);
        for (size_t i = 0; i < n; i++) {
            struct subject *s = &subjects[i];
            waits |= rank_trace_read(&s->trace);
            if (s->stacks_wait)
                s->stacks_wait = !stacks_written(s);
            if (s->stacks_wait)
                ask_other_thread(s);
            waits |= s->stacks_wait;
        }
    }
}

/* Find the processes, and ask them for their collectives. */
static struct subject *begin(const char *folder, const struct collect_rank *ranks,
                             size_t n, enum collect_part part, json_t *out)
{
    struct subject *subjects = xcalloc(n + 1, sizeof *subjects);
    OWNED struct dirent **files = NULL;
    int nfiles = scandir(folder, &files, NULL, NULL);
    for (size_t i = 0; i < n; i++) {
        struct subject *s = &subjects[i];
        *s = (struct subject){
            .is = ranks[i], .out = json_object(), .trace = {.sock = -1}, .before = -1};
        json_array_append_new(out, s->out);
        json_object_set_new(s->out, "rank", json_integer(s->is.rank));
        find_target(folder, files, nfiles, s);
        if (part != COLLECT_CALLS && !proc_describe(s->target, s->out))
            json_object_set_new(s->out, "state", json_string("in an unknown state"));
        char state = proc_state(s->target);
        if (state == 'T' || state == 't') {
            no_stacks(s, "it is stopped");
            json_object_set_new(s->out, "stopped", json_true());
            continue;
        }
        if (part != COLLECT_STACKS)
            rank_trace_ask(&s->trace, s->stem);
        s->trace.shorten = trace_shorten;
    }
    for (int i = 0; i < nfiles; i++)
        free(files[i]);
    return subjects;
}

json_t *collect(const char *folder, const struct collect_rank *ranks, size_t n,
                enum collect_part part)
{
    json_t *out = json_array();
    struct rank_trace ras = {.sock = -1};
    int64_t native_until_ms = now_ms() + NATIVE_MS;
    if (part == COLLECT_ALL && n > 0)
        ras_ask(&ras, folder);
    OWNED struct subject *subjects = begin(folder, ranks, n, part, out);
    /* first the collectives and connections: the signal for the stacks may end a sleep,
     * and a connect() */
    await_answers(subjects, n, &ras, FIRST_MS);
    OWNED struct described *native = xcalloc(n + 1, sizeof *native),
                           *all = xcalloc(n + 1, sizeof *all);
    for (size_t i = 0; i < n; i++)
        all[i] = (struct described){subjects[i].target, subjects[i].out};
    if (part == COLLECT_ALL)
        sockets_describe(all, n);
    for (size_t i = 0; i < n && part != COLLECT_CALLS; i++) {
        if (subjects[i].stem && !json_object_get(subjects[i].out, "no_stacks"))
            ask_stacks(&subjects[i]);
    }
    await_answers(subjects, n, &ras, ANSWER_MS);
    size_t nnative = 0;
    for (size_t i = 0; i < n; i++) {
        struct subject *s = &subjects[i];
        bool wanted = s->stem && part != COLLECT_STACKS;
        OWNED char *groups = wanted ? rank_file(s->stem, "groups", 0, 1 << 20) : NULL;
        if (part != COLLECT_STACKS)
            take_library(s);
        if (groups)
            take_groups(s, groups);
        take_trace(s, groups);
        if (part != COLLECT_STACKS)
            take_mpi(s);
        if (part == COLLECT_CALLS)
            json_object_set_new(s->out, "bytes",
                                json_integer((json_int_t)s->trace.received));
        if (s->before >= 0)
            take_stacks(s);
        else if (part == COLLECT_ALL && !json_object_get(s->out, "no_stacks"))
            native[nnative++] = all[i];
        if (part == COLLECT_ALL && s->before >= 0 && may_wait_in_c(s))
            native[nnative++] = (struct described){s->target, s->in_c = json_object()};
        if (part == COLLECT_ALL)
            describe_below(s);
        free(s->stem);
        free(s->trace.answer);
    }
    native_stacks(native, nnative, native_until_ms);
    for (size_t i = 0; i < n; i++)
        take_in_c(&subjects[i]);
    ras_take(&ras, json_array_get(out, 0));
    return out;
}

static void note_age(const json_t *of, json_int_t *idle_ms)
{
    json_int_t ms = int_of(of, "age_ms");
    *idle_ms = *idle_ms < 0 || ms < *idle_ms ? ms : *idle_ms;
}

json_t *collect_idle(json_t *ranks)
{
    json_int_t idle_ms = -1, waiting = 0, known = 0, blocked = 0, stopped = 0;
    const json_t *rank, *call;
    size_t i, k;
    json_array_foreach (ranks, i, rank) {
        const json_t *making = json_object_get(rank, "making"),
                     *message = json_object_get(rank, "message");
        bool waits = making != NULL;
        if (making)
            note_age(making, &idle_ms);
        json_int_t last = int_of(rank, "message_ms");
        if (json_object_get(rank, "message_ms") && (idle_ms < 0 || last < idle_ms))
            idle_ms = last;
        json_array_foreach (json_object_get(rank, "calls"), k, call) {
            note_age(call, &idle_ms);
            waits |= is_false(call, "done");
        }
        waiting += waits;
        blocked += waits || message;
        stopped += !waits && !message && is_true(rank, "stopped");
        known += making || json_object_get(rank, "groups");
    }
    json_decref(ranks);
    return json_pack("{s:I, s:I, s:I, s:I, s:I}", "idle_ms", idle_ms, "waiting", waiting,
                     "known", known, "blocked", blocked, "stopped", stopped);
}
