/* launcher/plugins/diagnose/diagnose_agent.c - hang reports and stragglers, on the nodes'
 * side
 *
 * Ranks put what a report reads into a folder of mode 0700. A Python rank finds our
 * sitecustomize first in its PYTHONPATH; libddpgroup reads DDPRUN_DIAGNOSE.
 */
#define LOG_SUBSYS "diagnose"
#include "launcher/agent/plugin.h"
#include "launcher/plugins/plugins.h"

#include "common/installed.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock.h"
#include "common/write_all.h"
#include "launcher/place/bind.h"
#include "launcher/plugins/diagnose/child.h"
#include "launcher/plugins/diagnose/questions.h"
#include "launcher/plugins/diagnose/ras.h"

#include <dirent.h>
#include <errno.h>
#include <event2/buffer.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* CLEAN_MS: delay before the folders of killed agents are removed; short jobs skip it */
enum { YOUNG_S = 60, CLEAN_MS = 100 };

struct diagnose {
    struct agent *agent; /* borrowed */
    char *folder;        /* owned; NULL: none could be made */
    int held;            /* owned: the open folder, locked as long as we live; -1 */
    struct event *clean; /* owned */
    int ras_fd;          /* owned: reserves the port of ras_addr; -1 */
    char *ras_addr; /* owned: NCCL_RAS_ADDR of this job here; NULL: no GPUs, or no port */
    char *nccl;     /* owned: that of the ranks, which the user may have set; NULL */
    char *python;   /* owned: the folder of sitecustomize.py; NULL: not installed */
    struct diagnose_child child;
    uint32_t inquiry;            /* number of the one that `child` answers */
    struct diagnose_child last;  /* reads stacks before SIGKILL */
    struct evbuffer *last_lines; /* owned: what it has written */
    struct questions *questions; /* owned */
};

static char *python_folder(void)
{
    char *file = installed_file(INSTALLED_PROGRAM, "preload/rank/sitecustomize.py", R_OK);
    if (file && !strchr(file, ':')) {
        *strrchr(file, '/') = '\0';
        return file;
    }
    free(file);
    return NULL;
}

/* --- the folder --------------------------------------------------------------------- */

/* Not in /tmp if possible: where that is a disk, a folder costs more than all else of a
 * short job, and its end waits for the disk. */
static const char *const parents[] = {"/dev/shm", "/tmp"};

static void remove_folder(int fd, const char *path)
{
    DIR *dir = fdopendir(dup(fd));
    for (struct dirent *e; dir && (e = readdir(dir));)
        unlinkat(fd, e->d_name, 0);
    if (dir)
        closedir(dir);
    rmdir(path);
}

/* Lock it: the lock ends with this process. -1: another holds it. */
static int hold_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static char *folder_prefix(void)
{
    return xasprintf("ddprun-%u-ranks-", (unsigned)geteuid());
}

/* Remove ours of agents that were killed. A new one may not be locked yet. */
static void on_clean(evutil_socket_t nothing, short what, void *arg)
{
    const struct diagnose *d = arg;
    char *name = folder_prefix();
    char *parent = xstrndup(d->folder, (size_t)(strrchr(d->folder, '/') - d->folder));
    DIR *dir = opendir(parent);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        struct stat st;
        if (strncmp(e->d_name, name, strlen(name)) != 0)
            continue;
        char *path = xasprintf("%s/%s", parent, e->d_name);
        bool old = lstat(path, &st) == 0 && st.st_uid == geteuid() &&
                   time(NULL) - st.st_mtime > YOUNG_S;
        int fd = old ? hold_folder(path) : -1;
        if (fd >= 0) {
            remove_folder(fd, path);
            close(fd);
        }
        free(path);
    }
    if (dir)
        closedir(dir);
    free(parent);
    free(name);
}

static int make_folder_in(struct diagnose *d, const char *parent)
{
    char *name = folder_prefix();
    char *path = xasprintf("%s/%sXXXXXX", parent, name);
    free(name);
    bool made = mkdtemp(path) != NULL;
    d->held = made ? hold_folder(path) : -1;
    if (d->held >= 0) {
        d->folder = path;
        loop_arm(d->clean, CLEAN_MS);
        return 0;
    }
    int error = errno;
    if (made)
        rmdir(path);
    free(path);
    errno = error;
    return -1;
}

static int make_folder(struct diagnose *d)
{
    for (size_t i = 0; i < ARRAY_LEN(parents); i++) {
        if (make_folder_in(d, parents[i]) == 0)
            return 0;
    }
    return -1;
}

static int diagnose_prepare(void *state, struct msg_job *job, struct ddp_err *err)
{
    struct diagnose *d = state;
    struct ddp_err why;
    int port;
    if (d->ras_fd < 0 && topo_gpus() > 0 && (d->ras_fd = sock_reserve(&port, &why)) >= 0)
        d->ras_addr = xasprintf("127.0.0.1:%d", port);
    if (!d->folder && make_folder(d) < 0) {
        int error = errno;
        log_info("hang reports will have no Python stacks and no collectives: cannot "
                 "make a folder in '%s' or '%s': %s",
                 parents[0], parents[1], strerror(error));
    }
    return 0;
}

/* --- the ranks ---------------------------------------------------------------------- */

static void diagnose_rank_facts(void *state, uint32_t local, struct rank_facts *facts)
{
    facts->nccl_ras = ((const struct diagnose *)state)->ras_addr;
}

/* Entries of PyTorch's flight recorder instead of 2,000: the rank needs 10 us for each in
 * every answer. Hang reports use the last 16. */
static void record_calls(const struct msg_job *job, struct strv *env)
{
    static const char *const sizes[] = {"TORCH_FR_BUFFER_SIZE",
                                        "TORCH_NCCL_TRACE_BUFFER_SIZE"};
    if (job->stragglers)
        strv_env_set(env, "DDPRUN_ARRIVALS", "1");
    if ((job->stragglers || job->page) && !strv_env_get(env, sizes[0]) &&
        !strv_env_get(env, sizes[1]))
        strv_env_set(env, sizes[0], "64");
}

/* The rank removes our folder from its PYTHONPATH again; a slash at its end
 * distinguishes an empty one from none. */
static void diagnose_rank_env(void *state, uint32_t local, struct strv *env)
{
    struct diagnose *d = state;
    record_calls(&d->agent->job, env);
    if (!d->folder)
        return;
    char *stem = xasprintf("%s/%u", d->folder, d->agent->share.ranks[local].rank);
    strv_env_set(env, "DDPRUN_DIAGNOSE", stem);
    free(stem);
    if (!d->nccl)
        d->nccl = xstrdup(strv_env_get(env, "NCCL_RAS_ADDR"));
    if (!d->python)
        return;
    const char *path = strv_env_get(env, "PYTHONPATH");
    char *longer = xasprintf("%s%s%s", d->python,
                             !path   ? ""
                             : *path ? ":"
                                     : "/",
                             path ? path : "");
    strv_env_set(env, "PYTHONPATH", longer);
    free(longer);
}

/* --- inquiries ---------------------------------------------------------------------- */

static void send_answer(struct diagnose *d, const uint8_t *data, size_t n)
{
    agent_send(d->agent,
               MSG(answer, .id = d->inquiry, .data = data, .ndata = (uint32_t)n));
}

static void on_out(const void *data, size_t n, void *arg)
{
    send_answer(arg, data, n);
}

/* For ras.h: at the first inquiry, as most jobs have none. */
static void note_ras(const struct diagnose *d)
{
    char *path = d->folder ? xasprintf("%s/" RAS_STEM "." RAS_SUFFIX, d->folder) : NULL;
    int fd =
        path && d->nccl ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd >= 0) {
        write_all(fd, d->nccl, strlen(d->nccl));
        close(fd);
    }
    free(path);
}

static int handle_inquire(void *state, const struct frame *f, struct ddp_err *err)
{
    struct diagnose *d = state;
    const struct msg_inquire *m = f->m;
    struct ddp_err why;
    d->inquiry = m->id;
    if (!m->brief)
        note_ras(d);
    int rc = diagnose_start(&d->child, d->agent, m->brief ? "brief" : "collect",
                            d->folder, -1, &why);
    if (rc < 0)
        log_warn("no report of the ranks here: %s", why.text);
    if (rc <= 0)
        send_answer(d, NULL, 0);
    return 0;
}

static int handle_question(void *state, const struct frame *f, struct ddp_err *err)
{
    struct diagnose *d = state;
    questions_ask(d->questions, f, d->folder);
    return 0;
}

/* --- before SIGKILL ----------------------------------------------------------------- */

static void on_last(const void *data, size_t n, void *arg)
{
    struct diagnose *d = arg;
    char *line;
    evbuffer_add(d->last_lines, data, n);
    while ((line = evbuffer_readln(d->last_lines, NULL, EVBUFFER_EOL_LF))) {
        agent_send(d->agent, MSG(log, LOG_WARN, msg_text(line)));
        free(line);
    }
    if (n == 0)
        agent_kill(d->agent);
}

/* Has a Python rank put its file there? */
static bool writes_stacks(const struct diagnose *d)
{
    bool found = false;
    DIR *dir = d->folder ? opendir(d->folder) : NULL;
    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        const char *suffix = strrchr(e->d_name, '.');
        found = suffix && strcmp(suffix, ".stacks") == 0;
    }
    if (dir)
        closedir(dir);
    return found;
}

static bool diagnose_before_kill(void *state)
{
    struct diagnose *d = state;
    struct ddp_err err;
    return writes_stacks(d) &&
           diagnose_start(&d->last, d->agent, "last", d->folder, -1, &err) > 0;
}

static void diagnose_ranks_over(void *state)
{
    struct diagnose *d = state;
    diagnose_child_kill(&d->last);
    evbuffer_drain(d->last_lines, evbuffer_get_length(d->last_lines));
}

/* --- life --------------------------------------------------------------------------- */

static bool diagnose_spares(const void *state, pid_t pid)
{
    const struct diagnose *d = state;
    return diagnose_child_is(&d->child, pid) || diagnose_child_is(&d->last, pid) ||
           questions_spares(d->questions, pid); /* they end with us */
}

static int diagnose_init(struct agent *a, void **state, struct ddp_err *err)
{
    struct diagnose *d = xcalloc(1, sizeof *d);
    *d = (struct diagnose){.agent = a,
                           .held = -1,
                           .clean = loop_timer(a->loop, on_clean, d),
                           .ras_fd = -1,
                           .python = python_folder(),
                           .child = {.reap = a->reap, .fd = -1, .out = on_out, .arg = d},
                           .last = {.reap = a->reap, .fd = -1, .out = on_last, .arg = d},
                           .last_lines = evbuffer_new(),
                           .questions = questions_create(a)};
    *state = d;
    return 0;
}

static void diagnose_fini(void *state)
{
    struct diagnose *d = state;
    diagnose_child_kill(&d->child);
    diagnose_child_kill(&d->last);
    questions_destroy(d->questions);
    evbuffer_free(d->last_lines);
    loop_free(d->clean);
    if (d->folder)
        remove_folder(d->held, d->folder);
    if (d->held >= 0)
        close(d->held);
    if (d->ras_fd >= 0)
        close(d->ras_fd);
    free(d->ras_addr);
    free(d->nccl);
    free(d->folder);
    free(d->python);
    free(d);
}

static const struct agent_message messages[] = {{MSG_INQUIRE, handle_inquire},
                                                {MSG_ASK_ARRIVALS, handle_question},
                                                {MSG_ASK_BESIDE, handle_question},
                                                {MSG_ASK_CALLS, handle_question},
                                                {0}};

const struct agent_plugin diagnose_agent = {
    .name = "diagnose",
    .init = diagnose_init,
    .fini = diagnose_fini,
    .prepare = diagnose_prepare,
    .rank_facts = diagnose_rank_facts,
    .rank_env = diagnose_rank_env,
    .ranks_over = diagnose_ranks_over,
    .before_kill = diagnose_before_kill,
    .spares = diagnose_spares,
    .messages = messages,
};
