/* launcher/plugins/gpu_jobs/gpu_jobs_agent.c - which job uses a GPU, for dcgm-exporter
 *
 * DCGM_HPC_JOB_MAPPING_DIR (its --hpc-job-mapping-dir) names a directory with a file for
 * each GPU, by its index, with the id of a job in each line: the label hpc_job of its
 * metrics. This job is in the files of the GPUs of its ranks while they run. Other jobs
 * may be in the same files: they are locked while they are changed.
 */
#define LOG_SUBSYS "agent"
#include "common/duration.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/write_all.h"
#include "launcher/agent/plugin.h"
#include "launcher/place/sysview.h"
#include "launcher/plugins/plugins.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* bytes; ms in which all files are locked: the agent waits */
enum { FILE_MAX = 64 << 10, LOCK_MS = 20 };

struct gpu_jobs {
    struct agent *agent; /* borrowed */
    char *dir, *id;      /* owned; NULL: none is named */
    struct strv files;   /* those that name this job */
};

/* The lines of `text` but `id`, in place; returns their length. */
static size_t without(char *text, const char *id)
{
    size_t n = 0, nid = strlen(id);
    for (char *line = text, *next; *line; line = next) {
        next = strchr(line, '\n');
        next = next ? next + 1 : line + strlen(line);
        size_t len = (size_t)(next - line);
        bool ours = len - (next[-1] == '\n') == nid && strncmp(line, id, nid) == 0;
        if (!ours) {
            memmove(text + n, line, len);
            n += len;
        }
    }
    return n;
}

/* Another job may hold it for a moment. */
static bool lock_until(int fd, int64_t deadline_ms)
{
    int rc;
    while ((rc = flock(fd, LOCK_EX | LOCK_NB)) < 0 && now_ms() < deadline_ms)
        sleep_ms(1);
    return rc == 0;
}

/* Without our line, or with it as the last one. 0, or -1 with errno. */
static int change_file(const char *path, const char *id, bool with, int64_t deadline_ms)
{
    SCOPED(close_fd)
    int fd = open(
        path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (with ? O_CREAT : 0), 0644);
    if (fd < 0)
        return -1;
    OWNED char *text = xcalloc(1, FILE_MAX + 1);
    ssize_t got = lock_until(fd, deadline_ms) ? pread(fd, text, FILE_MAX, 0) : -1;
    if (got == FILE_MAX)
        errno = EFBIG; /* what follows would be lost */
    if (got < 0 || got == FILE_MAX)
        return -1;
    size_t n = without(text, id);
    OWNED char *line = xasprintf("%s%s\n", n > 0 && text[n - 1] != '\n' ? "\n" : "", id);
    if (ftruncate(fd, (off_t)n) < 0 || lseek(fd, (off_t)n, SEEK_SET) < 0 ||
        pwrite(fd, text, n, 0) != (ssize_t)n ||
        (with && write_all(fd, line, strlen(line)) < 0))
        return -1;
    return 0;
}

static void leave(void *state)
{
    struct gpu_jobs *s = state;
    int64_t deadline_ms = now_ms() + LOCK_MS;
    for (size_t i = 0; i < s->files.n; i++) {
        if (change_file(s->files.v[i], s->id, false, deadline_ms) < 0)
            log_info("%s still names this job: %s", s->files.v[i], strerror(errno));
    }
    strv_finish(&s->files);
}

/* Those of CUDA_VISIBLE_DEVICES, or all. */
static void list_gpus(struct strv *gpus)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (!visible)
        sysview_gpus("", NULL, gpus);
    for (const char *p = visible; p && *p; p += *p == ',') {
        size_t n = strcspn(p, ",");
        strv_push_nodup(gpus, xstrndup(p, n));
        p += n;
    }
}

/* A rank's GPU is that of its local rank, as bind_node() has it. */
static void join(struct gpu_jobs *s)
{
    SCOPED(strv_finish) struct strv gpus = {0};
    list_gpus(&gpus);
    int64_t deadline_ms = now_ms() + LOCK_MS;
    for (size_t i = 0; i < gpus.n && i < s->agent->share.nlocal; i++) {
        const char *gpu = gpus.v[i];
        if (!*gpu || gpu[strspn(gpu, "0123456789")])
            continue; /* by UUID: the index is not known */
        OWNED char *path = xasprintf("%s/%s", s->dir, gpu);
        if (change_file(path, s->id, true, deadline_ms) == 0)
            strv_push(&s->files, path);
        else
            log_warn("DCGM_HPC_JOB_MAPPING_DIR: cannot write '%s': %s", path,
                     strerror(errno));
    }
}

static int gpu_jobs_prepare(void *state, struct msg_job *job, struct ddp_err *err)
{
    struct gpu_jobs *s = state;
    const char *dir = strv_env_get(&job->env, "DCGM_HPC_JOB_MAPPING_DIR");
    leave(s); /* of the last attempt */
    dir = dir ? dir : getenv("DCGM_HPC_JOB_MAPPING_DIR");
    if (!dir || !*dir)
        return 0;
    free(s->dir);
    free(s->id);
    s->dir = xstrdup(dir);
    s->id = xstrdup(job->id);
    join(s);
    return 0;
}

static void gpu_jobs_fini(void *state)
{
    struct gpu_jobs *s = state;
    leave(s);
    free(s->dir);
    free(s->id);
}

const struct agent_plugin gpu_jobs_agent = {
    .name = "gpu_jobs",
    .state_size = sizeof(struct gpu_jobs),
    .fini = gpu_jobs_fini,
    .prepare = gpu_jobs_prepare,
    .ranks_over = leave,
};
