/* launcher/control/client.c - see client.h */
#include "launcher/control/client.h"

#include "common/ancestry.h"
#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/control/rundir.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* ms in which a job that runs has made its socket, and in which a process that is to be
 * its ddprun has called exec; us between two looks for it */
enum { YOUNG_MS = 2000, EXEC_MS = 100, POLL_US = 10000 };

/* s; a stopped job accepts nothing, and connect() blocks when its queue is full */
enum { CONNECT_S = 5 };

/* of try_connect(): there is a job, which does not accept */
enum { NO_JOB = -1, BUSY = -2 };
#define DIGITS "0123456789"

static bool has_pid(const char *name, const char *job)
{
    size_t npid = strcspn(name, "-");
    return job && strlen(job) == npid && memcmp(name, job, npid) == 0;
}

static bool has_id(const char *name, const char *job)
{
    size_t npid = strcspn(name, "-"), n = job ? strlen(job) : 0;
    return !job || (name[npid] && n > 0 && strncmp(name + npid + 1, job, n) == 0);
}

static int try_connect(const char *path)
{
    struct sockaddr_un sa;
    SCOPED(close_fd) int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || rundir_addr(path, &sa, NULL) < 0)
        return NO_JOB;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &(struct timeval){CONNECT_S, 0},
               sizeof(struct timeval));
    if (connect(fd, (struct sockaddr *)&sa, sizeof sa) < 0)
        return errno == EAGAIN ? BUSY : NO_JOB;
    int connected = fd;
    fd = -1;
    return connected;
}

/* A job has no socket in its first moments: see control_create(). For how many ms may
 * this still be so? */
static int64_t young_ms(const char *job)
{
    char name[ANCESTRY_NAME];
    pid_t pid = job && job[strspn(job, DIGITS)] == '\0' ? (pid_t)atol(job) : 0;
    if (pid <= 0 || ancestry_parent(pid, name) == 0)
        return 0;
    return strcmp(name, "ddprun") == 0 ? YOUNG_MS : EXEC_MS;
}

/* Returns the number of jobs that are meant, and a connection to one of them, NO_JOB or
 * BUSY; adds their pids to *list. */
static int connect_to(const struct strv *sockets,
                      bool (*meant)(const char *name, const char *job), const char *job,
                      int *fd, char **list)
{
    int found = 0;
    for (size_t i = 0; i < sockets->n; i++) {
        const char *name = strrchr(sockets->v[i], '/') + 1;
        int one = meant(name, job) ? try_connect(sockets->v[i]) : NO_JOB;
        if (one == NO_JOB)
            continue;
        xappendf(list, "%s%.*s", found ? ", " : "", (int)strcspn(name, "-"), name);
        if (found++ == 0)
            *fd = one;
        else if (one >= 0)
            close(one);
    }
    return found;
}

/* A pid counts first: the id of another job may begin with it. */
static int connect_now(const char *job, int *fd, char **list)
{
    SCOPED(strv_finish) struct strv sockets = {0};
    rundir_list(&sockets);
    *fd = NO_JOB;
    int found = connect_to(&sockets, has_pid, job, fd, list);
    if (found == 0)
        found = connect_to(&sockets, has_id, job, fd, list);
    return found;
}

int control_connect(const char *job, struct ddp_err *err)
{
    OWNED char *list = NULL;
    int fd, found;
    int64_t began_ms = now_ms();
    while ((found = connect_now(job, &fd, &list)) == 0 &&
           now_ms() - began_ms < young_ms(job))
        usleep(POLL_US);
    if (found == 0)
        err_set(err,
                "no running job%s%.40s%s of yours on this machine; if its ddprun runs on "
                "another: ssh HOST, or in Slurm srun --overlap --jobid JOB",
                job ? " '" : "", job ? job : "", job ? "'" : "");
    else if (found > 1)
        err_set(err, "%d jobs are running: give one of %s", found, list);
    else if (fd == BUSY)
        err_set(err, "the job %s does not answer: is its ddprun stopped?", list);
    if (found > 1 && fd >= 0)
        close(fd);
    return found == 1 && fd >= 0 ? fd : -1;
}

static json_t *read_line(int fd, int64_t deadline_ms, struct ddp_err *err)
{
    size_t size = 0, room = 4096;
    OWNED char *text = xcalloc(room, 1);
    ssize_t n;
    do {
        if (room - size < 2048)
            text = xrealloc(text, room *= 2, 1);
        n = now_ms() >= deadline_ms || sock_await(fd, POLLIN, deadline_ms) < 0
                ? -1
                : recv(fd, text + size, room - size, 0);
        size += n > 0 ? (size_t)n : 0;
    } while (n > 0 && text[size - 1] != '\n');
    json_t *answer = n > 0 ? json_loadb(text, size, 0, NULL) : NULL;
    if (!answer)
        err_set(err, n == 0 ? "the job has ended" : "the job does not answer");
    return answer;
}

json_t *control_ask(int fd, const json_t *request, int64_t deadline_ms,
                    struct ddp_err *err)
{
    OWNED char *text = json_dumps(request, JSON_COMPACT);
    size_t size = strlen(text);
    text[size++] = '\n'; /* in place of the zero */
    if (sock_write_all(fd, text, size, deadline_ms) < 0) {
        err_set(err, "the job has ended");
        return NULL;
    }
    json_t *answer = read_line(fd, deadline_ms, err);
    const char *error = json_string_value(json_object_get(answer, "error"));
    if (error) {
        err_set(err, "%s", error);
        json_decref(answer);
        return NULL;
    }
    return answer;
}
