/* launcher/agent/kill_tree.c - see kill_tree.h
 *
 * The scan lists (pid, parent, group). A process is a descendant when its chain of
 * parents reaches us; marking repeats until nothing new is found, which takes two or
 * three passes for the flat trees of real jobs. A process forked during the scan is
 * missed and found by the next one: callers repeat with SIGKILL until wait() has nothing
 * left.
 */
#include "launcher/agent/kill_tree.h"

#include "common/duration.h"
#include "common/mem.h"
#include "common/read_start.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ms: for helpers to end by themselves */
enum { DESCRIBED = 4, FUTILE = 3, HELPERS_MS = 2000 };

struct proc {
    struct ancestry_proc is;
    bool ours;
    enum kill_tree_rule rule;
};

static int by_pid(const void *a, const void *b)
{
    const struct proc *p = a, *q = b;
    return (p->is.pid > q->is.pid) - (p->is.pid < q->is.pid);
}

static struct proc *scan(size_t *n)
{
    struct proc *list = NULL;
    size_t room = 0;
    *n = 0;
    SCOPED(close_folder) DIR *dir = opendir("/proc");
    if (!dir)
        return NULL;
    for (struct dirent *d; (d = readdir(dir));) {
        struct proc p = {0};
        if (!isdigit((unsigned char)d->d_name[0]) ||
            !ancestry_read(atoi(d->d_name), &p.is))
            continue;
        list = xroom(list, *n, &room, sizeof *list);
        list[(*n)++] = p;
    }
    if (*n > 0)
        qsort(list, *n, sizeof *list, by_pid);
    return list;
}

static bool is_ours(const struct proc *list, size_t n, pid_t pid, pid_t self)
{
    if (pid == self)
        return true;
    struct proc key = {.is.pid = pid};
    const struct proc *p = n ? bsearch(&key, list, n, sizeof *list, by_pid) : NULL;
    return p && p->ours;
}

/* All processes, our descendants marked. */
static struct proc *scan_descendants(kill_tree_fn *rule, void *arg, size_t *count)
{
    struct proc *list = scan(count);
    size_t n = *count;
    pid_t self = getpid();
    for (size_t i = 0; i < n; i++) {
        if (list[i].is.pid != self && rule)
            list[i].rule = rule(&list[i].is, arg);
    }
    for (bool found = true; found;) {
        found = false;
        for (size_t i = 0; i < n; i++) {
            if (!list[i].ours && list[i].is.pid != self &&
                list[i].rule != KILL_TREE_SPARE &&
                is_ours(list, n, list[i].is.parent, self))
                found = list[i].ours = true;
        }
    }
    return list;
}

/* A process whose first thread has ended looks like a zombie while others run, or hang in
 * the kernel: one of these; 0: all have ended. */
static pid_t living_thread(pid_t pid, struct ancestry_proc *t)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    SCOPED(close_folder) DIR *dir = opendir(path);
    pid_t found = 0;
    for (struct dirent *d; dir && found == 0 && (d = readdir(dir));) {
        pid_t tid = atoi(d->d_name); /* 0 of "." and ".." */
        if (tid > 0 && tid != pid && ancestry_read(tid, t) && !strchr("ZX", t->state))
            found = tid;
    }
    return found;
}

static bool has_ended(const struct proc *p)
{
    struct ancestry_proc t;
    return p->is.state == 'Z' && living_thread(p->is.pid, &t) == 0;
}

int kill_tree_signal(int sig, kill_tree_fn *rule, void *arg)
{
    size_t n;
    OWNED struct proc *list = scan_descendants(rule, arg, &n);
    int sent = 0;
    for (size_t i = 0; i < n; i++) {
        if (list[i].ours && list[i].rule == KILL_TREE_TAKE && !has_ended(&list[i]) &&
            kill(list[i].is.pid, sig) == 0)
            sent++;
    }
    return sent;
}

/* The debugger that has not reaped a process yet, so that its parent cannot; 0: none. */
static pid_t tracer_of(pid_t pid)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    const char *line =
        read_start(path, text, sizeof text) > 0 ? strstr(text, "\nTracerPid:") : NULL;
    return line ? atoi(line + strlen("\nTracerPid:")) : 0;
}

/* Other zombies are about to be reaped. */
static bool is_left(const struct proc *p)
{
    return p->ours && p->rule == KILL_TREE_TAKE &&
           (!has_ended(p) || tracer_of(p->is.pid) > 0);
}

static void describe(const struct proc *p, FILE *out)
{
    char path[64], wchan[64];
    struct stat st;
    int pid = (int)p->is.pid, tracer = (int)tracer_of(pid);
    struct ancestry_proc t = p->is;
    int tid = p->is.state == 'Z' ? (int)living_thread(pid, &t) : 0;
    /* the kernel function in which it sleeps; "" if it cannot be read */
    snprintf(path, sizeof path, "/proc/%d/wchan", tid > 0 ? tid : pid);
    read_start(path, wchan, sizeof wchan);
    snprintf(path, sizeof path, "/proc/%d", pid);
    fprintf(out, "process %d (%s)", pid, p->is.name);
    if (stat(path, &st) == 0 && st.st_uid != geteuid())
        fprintf(out, " of uid %u", (unsigned)st.st_uid);
    if (tid > 0)
        fprintf(out, ", thread %d", tid);
    fprintf(out, ", state %c", t.state);
    if (wchan[0] && strcmp(wchan, "0") != 0)
        fprintf(out, " in %s", wchan);
    if (tracer > 0)
        fprintf(out, ", traced by process %d", tracer);
}

char *kill_tree_describe(kill_tree_fn *rule, void *arg)
{
    size_t n, found = 0, size;
    char *text = NULL;
    OWNED struct proc *list = scan_descendants(rule, arg, &n);
    FILE *out = xmemstream(&text, &size);
    for (size_t i = 0; i < n; i++) {
        if (!is_left(&list[i]) || found++ >= DESCRIBED)
            continue;
        fputs(found > 1 ? "; " : "", out);
        describe(&list[i], out);
    }
    if (found > DESCRIBED)
        fprintf(out, "; and %zu more", found - DESCRIBED);
    xmemclose(out);
    if (found > 0)
        return text;
    free(text);
    return NULL;
}

enum kill_tree_rule kill_tree_pass_helpers(const struct ancestry_proc *p, void *arg)
{
    static const char ours[] = "ddprun-";
    return strncmp(p->name, ours, strlen(ours)) == 0 ? KILL_TREE_PASS : KILL_TREE_TAKE;
}

/* Only the pauses are counted: after a machine was frozen, helpers that exit by
 * themselves still have their time. */
bool kill_tree_reap(int64_t limit_ms)
{
    int futile = 0; /* consecutive scans that found no process we may signal */
    for (int64_t waited_ms = 0, pause_ms = 1;; waited_ms += pause_ms) {
        pid_t pid;
        while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
            ;
        if (pid < 0 && errno == ECHILD)
            return true;
        if (waited_ms >= limit_ms || futile == FUTILE)
            return false;
        bool first = waited_ms < HELPERS_MS;
        int sent = kill_tree_signal(SIGKILL, first ? kill_tree_pass_helpers : NULL, NULL);
        futile = sent > 0 || first ? 0 : futile + 1;
        pause_ms = waited_ms < 50 ? waited_ms + 1 : 50;
        sleep_ms(pause_ms);
    }
}
