/* launcher/plugins/diagnose/diagnose_agent.c - hang reports and stragglers, on the nodes'
 * side
 *
 * Ranks put what a report reads into a folder of mode 0700. A Python rank finds our
 * sitecustomize first in its PYTHONPATH; libddpgroup reads DDPRUN_DIAGNOSE.
 */
#define LOG_SUBSYS "diagnose"
#include "launcher/agent/plugin.h"
#include "launcher/plugins/plugins.h"

#include "common/duration.h"
#include "common/installed.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/mpi_calls.h"
#include "common/sock.h"
#include "common/write_all.h"
#include "launcher/agent/ranks.h"
#include "launcher/place/bind.h"
#include "launcher/plugins/diagnose/arrivals.h"
#include "launcher/plugins/diagnose/ras.h"
#include "launcher/transport/own_program.h"

#include <dirent.h>
#include <errno.h>
#include <event2/buffer.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

/* CLEAN_MS: delay before the folders of killed agents are removed; short jobs skip it */
enum { YOUNG_S = 60, CLEAN_MS = 100, ROOM = 1 << 20 };

enum { CALLS_MAX = 3 << 20 }; /* bytes; the message takes more */

/* What ddprun-diagnose is asked about the ranks here, each by a process of its own. */
enum question_kind {
    INQUIRY,  /* for a hang report */
    ARRIVALS, /* for --stragglers: when they have entered collectives */
    BESIDE,   /* ... what else runs on the CPUs of one of them */
    CALLS,    /* for a page: the collectives that they are in */
    LAST,     /* before SIGKILL: their stacks */
    QUESTIONS
};

/* By what the launcher asks; `part`: of ddprun-diagnose. */
static const struct {
    enum question_kind kind;
    const char *part;
} asked[] = {[ASK_REPORT] = {INQUIRY, "collect"},
             [ASK_BRIEF] = {INQUIRY, "brief"},
             [ASK_ARRIVALS] = {ARRIVALS, "arrivals"},
             [ASK_BESIDE] = {BESIDE, "beside"},
             [ASK_CALLS] = {CALLS, "calls"}};

struct rank_question {
    struct diagnose *d; /* borrowed: owner */
    struct own_program child;
    struct evbuffer *text; /* owned: its output, as far as it has not been passed on */
    uint32_t id;           /* of the launcher's question; BESIDE: the rank */
    int64_t asked_ns;
};

struct diagnose {
    struct agent *agent; /* borrowed */
    char *folder;        /* owned; NULL: none could be made */
    int held;            /* owned: the open folder, locked as long as we live; -1 */
    struct event *clean; /* owned */
    int ras_fd;          /* owned: reserves the port of ras_addr; -1 */
    char *ras_addr; /* owned: NCCL_RAS_ADDR of this job here; NULL: no GPUs, or no port */
    char *nccl;     /* owned: that of the ranks, which the user may have set; NULL */
    char *python;   /* owned: the folder of sitecustomize.py; NULL: not installed */
    bool mpi, unfit;  /* a program is MPI's; one cannot load a library of ours */
    bool lacks_large; /* MPI's functions for large counts: the MPI of one has none */
    struct rank_question questions[QUESTIONS];
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
    SCOPED(close_folder) DIR *dir = fdopendir(dup(fd));
    for (struct dirent *e; dir && (e = readdir(dir));)
        unlinkat(fd, e->d_name, 0);
    rmdir(path);
}

/* Lock it: the lock ends with this process. -1: another holds it. */
static int hold_folder(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    close_fd(&fd);
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
    OWNED char *name = folder_prefix();
    OWNED char *parent =
        xstrndup(d->folder, (size_t)(strrchr(d->folder, '/') - d->folder));
    SCOPED(close_folder) DIR *dir = opendir(parent);
    for (struct dirent *e; dir && (e = readdir(dir));) {
        struct stat st;
        if (strncmp(e->d_name, name, strlen(name)) != 0)
            continue;
        OWNED char *path = xasprintf("%s/%s", parent, e->d_name);
        bool old = lstat(path, &st) == 0 && st.st_uid == geteuid() &&
                   time(NULL) - st.st_mtime > YOUNG_S;
        SCOPED(close_fd) int fd = old ? hold_folder(path) : -1;
        if (fd >= 0)
            remove_folder(fd, path);
    }
}

static int make_folder_in(struct diagnose *d, const char *parent)
{
    OWNED char *name = folder_prefix();
    char *path = xasprintf("%s/%sXXXXXX", parent, name);
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

/* For the stacks of some ranks: a container's /dev/shm, of 64 MiB, may be full. */
static bool has_room(const char *parent)
{
    struct statvfs fs;
    return statvfs(parent, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize >= ROOM;
}

/* If none has room, in the first that there is. */
static int make_folder(struct diagnose *d)
{
    for (size_t i = 0; i < 2 * ARRAY_LEN(parents); i++) {
        const char *parent = parents[i % ARRAY_LEN(parents)];
        if ((i >= ARRAY_LEN(parents) || has_room(parent)) &&
            make_folder_in(d, parent) == 0)
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

/* Of a program's file, as far as ddprun-mpi-calls.so is concerned. */
struct seen {
    bool mpi, unfit;
    bool large; /* its MPI has functions for large counts */
};

/* Does the program, or library, at `path` need MPI? If so, what this has. */
static void look_for_mpi(const char *path, const struct elf *elf, const char *folders,
                         struct seen *s)
{
    for (size_t i = 0; i < elf->needs.n; i++) {
        const char *name = elf->needs.v[i];
        SCOPED(elf_finish) struct elf library = {0};
        if (strncmp(name, "libmpi", strlen("libmpi")) != 0)
            continue;
        OWNED char *file = elf_find(path, elf, folders, name);
        s->mpi = true;
        s->large |=
            file && elf_read(file, &library) == 0 && elf_names(&library, "MPI_Send_c");
    }
}

/* The library of a sanitizer has to be the first one. */
static bool names_sanitizer(const char *text)
{
    static const char *const sanitizers[] = {"libasan.",  "libtsan.",   "liblsan.",
                                             "libubsan.", "libhwasan.", "libclang_rt."};
    bool named = false;
    for (size_t i = 0; text && i < ARRAY_LEN(sanitizers); i++)
        named |= strstr(text, sanitizers[i]) != NULL;
    return named;
}

/* The program needs MPI, or a library of it does. musl's linker cannot load ours. */
static void *diagnose_examine(const char *path, const struct elf *elf,
                              const struct strv *env)
{
    struct seen *s = xcalloc(1, sizeof *s);
    const char *folders = strv_env_get(env, "LD_LIBRARY_PATH");
    s->unfit = elf->interpreter && strstr(elf->interpreter, "musl");
    look_for_mpi(path, elf, folders, s);
    for (size_t i = 0; i < elf->needs.n; i++) {
        const char *name = elf->needs.v[i];
        SCOPED(elf_finish) struct elf library = {0};
        OWNED char *file = s->mpi ? NULL : elf_find(path, elf, folders, name);
        s->unfit |= names_sanitizer(name);
        if (file && elf_read(file, &library) == 0)
            look_for_mpi(file, &library, folders, s);
    }
    return s;
}

static int diagnose_program(void *state, const char *path, const void *seen,
                            struct ddp_err *err)
{
    struct diagnose *d = state;
    const struct seen *file = seen;
    d->mpi |= file->mpi;
    d->lacks_large |= file->mpi && !file->large;
    d->unfit |= file->unfit;
    return 0;
}

/* The rank takes it out of the variable again. A program may look whether its MPI has the
 * functions for large counts: it is not to find ours alone. */
static void record_mpi(const struct diagnose *d, struct strv *env)
{
    const char *wish = strv_env_get(env, MPI_CALLS_WISH);
    bool on = wish && strcmp(wish, "on") == 0, off = wish && strcmp(wish, "off") == 0;
    if (off || d->unfit || (!on && !d->mpi))
        return;
    const char *others = strv_env_get(env, "LD_PRELOAD");
    if (names_sanitizer(others))
        return;
    OWNED char *file = installed_file(INSTALLED_PROGRAM, "ddprun-mpi-calls.so", R_OK);
    if (!file || strpbrk(file, ": ")) /* which separate names */
        return;
    const char *name = "ddprun-mpi-calls-large.so";
    OWNED char *large =
        d->mpi && !d->lacks_large ? installed_file(INSTALLED_PROGRAM, name, R_OK) : NULL;
    OWNED char *list = xasprintf("%s%s%s%s%s", large ? large : "", large ? ":" : "", file,
                                 others ? ":" : "", others ? others : "");
    strv_env_set(env, "LD_PRELOAD", list);
}

/* The rank removes our folder from its PYTHONPATH again; a slash at its end
 * distinguishes an empty one from none. */
static void diagnose_rank_env(void *state, uint32_t local, struct strv *env)
{
    struct diagnose *d = state;
    record_calls(&d->agent->job, env);
    if (!d->folder)
        return;
    OWNED char *stem = xasprintf("%s/%u", d->folder, d->agent->share.ranks[local].rank);
    strv_env_set(env, "DDPRUN_DIAGNOSE", stem);
    record_mpi(d, env);
    if (!d->nccl)
        d->nccl = xstrdup(strv_env_get(env, "NCCL_RAS_ADDR"));
    if (!d->python)
        return;
    const char *path = strv_env_get(env, "PYTHONPATH");
    OWNED char *longer = xasprintf("%s%s%s", d->python,
                                   !path   ? ""
                                   : *path ? ":"
                                           : "/",
                                   path ? path : "");
    strv_env_set(env, "PYTHONPATH", longer);
}

/* --- questions: a new one of a kind replaces that before -----------------------------
 */

/* Rank `first` (-1: any) comes before the others. 1; 0: no rank runs; -1: error. */
static int start(struct rank_question *q, const char *part, int64_t first,
                 struct ddp_err *err)
{
    const struct agent *a = q->d->agent;
    SCOPED(strv_finish) struct strv args = {0};
    own_program_kill(&q->child);
    evbuffer_drain(q->text, evbuffer_get_length(q->text));
    strv_push(&args, part);
    strv_push(&args, q->d->folder ? q->d->folder : "/nonexistent");
    for (int turn = 0; turn < 2; turn++) {
        for (uint32_t i = 0; i < a->share.nlocal; i++) {
            uint32_t rank = a->share.ranks[i].rank;
            pid_t pid = ranks_pid(a->ranks, i);
            if (pid > 0 && (rank == first) == (turn == 0))
                strv_pushf(&args, "%u:%d", rank, (int)pid);
        }
    }
    int rc = args.n > 2;
    if (rc &&
        own_program_start(&q->child, a->loop, "ddprun-diagnose", &args, -1, err) < 0)
        rc = -1;
    return rc;
}

/* A report may be long: each piece is sent as it comes. */
static void on_inquiry(const void *data, size_t n, void *arg)
{
    const struct rank_question *q = arg;
    agent_send(q->d->agent, MSG(answer, .id = q->id, .data = data, .ndata = (uint32_t)n));
}

static void on_arrivals(const void *data, size_t size, void *arg)
{
    struct rank_question *q = arg;
    evbuffer_add(q->text, data, size);
    if (size > 0)
        return;
    size_t n = evbuffer_get_length(q->text) / sizeof(struct arrivals_record);
    const struct arrivals_record *r = (void *)evbuffer_pullup(q->text, -1);
    OWNED struct call_arrival *list = xcalloc(n + 1, sizeof *list);
    for (size_t i = 0; i < n; i++)
        list[i] = (struct call_arrival){r[i].rank, r[i].group, r[i].number, r[i].at_ns};
    agent_send(q->d->agent, MSG(arrivals, .id = q->id, .asked_ns = q->asked_ns,
                                .sent_ns = now_ns(), .n = (uint32_t)n, .list = list));
}

/* The text is complete, and returned, with the piece of length 0; else NULL. */
static char *add_piece(struct rank_question *q, const void *data, size_t n)
{
    evbuffer_add(q->text, n ? data : "", n ? n : 1);
    return n ? NULL : (char *)evbuffer_pullup(q->text, -1);
}

static void on_beside(const void *data, size_t n, void *arg)
{
    struct rank_question *q = arg;
    char *text = add_piece(q, data, n);
    if (text)
        agent_send(q->d->agent, MSG(beside, .rank = q->id, .text = text));
}

static void on_calls(const void *data, size_t n, void *arg)
{
    struct rank_question *q = arg;
    bool fits = evbuffer_get_length(q->text) + n <= CALLS_MAX;
    char *text = add_piece(q, data, n);
    if (text)
        agent_send(q->d->agent, MSG(calls, .id = q->id, .text = fits ? text : NULL));
}

/* For ras.h: at the first inquiry, as most jobs have none. */
static void note_ras(const struct diagnose *d)
{
    OWNED char *path =
        d->folder ? xasprintf("%s/" RAS_STEM "." RAS_SUFFIX, d->folder) : NULL;
    SCOPED(close_fd)
    int fd =
        path && d->nccl ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    if (fd >= 0)
        write_all(fd, d->nccl, strlen(d->nccl));
}

/* The launcher gets an answer without data if no rank runs, and none to a report if the
 * ranks that run cannot be described. */
static int handle_ask(void *state, const struct frame *f, struct ddp_err *err)
{
    struct diagnose *d = state;
    const struct msg_ask *m = f->m;
    struct rank_question *q = &d->questions[asked[m->what].kind];
    struct ddp_err why;
    if (m->what == ASK_REPORT)
        note_ras(d);
    q->id = m->id;
    q->asked_ns = now_ns();
    int rc =
        start(q, asked[m->what].part, m->what == ASK_BESIDE ? (int64_t)m->id : -1, &why);
    if (rc < 0 && m->what == ASK_REPORT)
        log_warn("no report of the ranks here: %s", why.text);
    else if (rc < 0)
        log_info("no answer about the ranks here: %s", why.text);
    if (rc == 0 || (rc < 0 && m->what != ASK_REPORT))
        q->child.out(NULL, 0, q);
    return 0;
}

/* --- before SIGKILL ----------------------------------------------------------------- */

static void on_last(const void *data, size_t n, void *arg)
{
    struct rank_question *q = arg;
    char *line;
    evbuffer_add(q->text, data, n);
    while ((line = evbuffer_readln(q->text, NULL, EVBUFFER_EOL_LF))) {
        agent_send(q->d->agent, MSG(log, LOG_WARN, msg_text(line)));
        free(line);
    }
    if (n == 0)
        agent_kill(q->d->agent);
}

/* Has a Python rank put its file there? */
static bool writes_stacks(const struct diagnose *d)
{
    bool found = false;
    SCOPED(close_folder) DIR *dir = d->folder ? opendir(d->folder) : NULL;
    for (struct dirent *e; dir && !found && (e = readdir(dir));) {
        const char *suffix = strrchr(e->d_name, '.');
        found = suffix && strcmp(suffix, ".stacks") == 0;
    }
    return found;
}

static bool diagnose_before_kill(void *state)
{
    struct diagnose *d = state;
    struct ddp_err err;
    return writes_stacks(d) && start(&d->questions[LAST], "last", -1, &err) > 0;
}

static void diagnose_ranks_over(void *state)
{
    own_program_kill(&((struct diagnose *)state)->questions[LAST].child);
}

/* --- life --------------------------------------------------------------------------- */

static bool diagnose_spares(const void *state, pid_t pid)
{
    const struct diagnose *d = state;
    bool spares = false;
    for (size_t i = 0; i < QUESTIONS; i++)
        spares |= own_program_is(&d->questions[i].child, pid); /* ends with us */
    return spares;
}

static void diagnose_init(void *state)
{
    static void (*const out[])(const void *data, size_t n,
                               void *arg) = {[INQUIRY] = on_inquiry,
                                             [ARRIVALS] = on_arrivals,
                                             [BESIDE] = on_beside,
                                             [CALLS] = on_calls,
                                             [LAST] = on_last};
    struct diagnose *d = state;
    d->held = d->ras_fd = -1;
    d->clean = loop_timer(d->agent->loop, on_clean, d);
    d->python = python_folder();
    for (size_t i = 0; i < QUESTIONS; i++) {
        struct rank_question *q = &d->questions[i];
        q->d = d;
        q->child = (struct own_program){
            .reap = d->agent->reap, .fd = -1, .out = out[i], .arg = q};
        q->text = evbuffer_new();
    }
}

static void diagnose_fini(void *state)
{
    struct diagnose *d = state;
    for (size_t i = 0; i < QUESTIONS; i++) {
        own_program_kill(&d->questions[i].child);
        evbuffer_free(d->questions[i].text);
    }
    loop_free(d->clean);
    if (d->folder)
        remove_folder(d->held, d->folder);
    close_fd(&d->held);
    close_fd(&d->ras_fd);
    free(d->ras_addr);
    free(d->nccl);
    free(d->folder);
    free(d->python);
}

static const struct agent_message messages[] = {{MSG_ASK, handle_ask}, {0}};

const struct agent_plugin diagnose_agent = {
    .name = "diagnose",
    .state_size = sizeof(struct diagnose),
    .init = diagnose_init,
    .fini = diagnose_fini,
    .prepare = diagnose_prepare,
    .examine = diagnose_examine,
    .program = diagnose_program,
    .rank_facts = diagnose_rank_facts,
    .rank_env = diagnose_rank_env,
    .ranks_over = diagnose_ranks_over,
    .before_kill = diagnose_before_kill,
    .spares = diagnose_spares,
    .messages = messages,
};
