/* launcher/control/rundir.c - see rundir.h */
#include "launcher/control/rundir.h"

#include "common/err.h"
#include "common/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_ours(const char *path, struct stat *st)
{
    return lstat(path, st) == 0 && S_ISDIR(st->st_mode) && st->st_uid == geteuid();
}

/* Both places; the first may not be there. A job of a scheduler has no XDG_RUNTIME_DIR,
 * a login on its node has one. */
enum { PLACES = 2 };

static char *place_of(int i)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat st;
    if (i == 1)
        return xasprintf("/tmp/ddprun-%u", (unsigned)geteuid());
    return runtime && *runtime == '/' && is_ours(runtime, &st)
               ? xasprintf("%s/ddprun", runtime)
               : NULL;
}

char *rundir_path(struct ddp_err *err)
{
    struct stat st;
    char *path = place_of(0);
    path = path ? path : place_of(1);
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        err_errno(err, "cannot make '%s'", path);
    else if (!is_ours(path, &st) || (st.st_mode & 077))
        err_set(err, "'%s' must be a directory of yours with mode 0700: remove it", path);
    else
        return path;
    free(path);
    return NULL;
}

/* PID-ID: others may keep their files here, too. */
static bool is_job(const char *name)
{
    size_t pid = strspn(name, "0123456789");
    return pid > 0 && name[pid] == '-' &&
           name[pid + 1 + strspn(name + pid + 1, "0123456789abcdef")] == '\0';
}

static bool is_refused(const char *path)
{
    struct sockaddr_un sa;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool refused = fd >= 0 && rundir_addr(path, &sa, NULL) == 0 &&
                   connect(fd, (struct sockaddr *)&sa, sizeof sa) < 0 &&
                   errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return refused;
}

static bool is_unlocked(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool unlocked = fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) == 0;
    if (fd >= 0)
        close(fd);
    return unlocked;
}

/* Was its launcher killed? One that is not here may be in another namespace of pids, with
 * the same /tmp. */
static bool is_stale(const char *path, const char *name)
{
    bool token = strncmp(name, RUNDIR_TOKEN, strlen(RUNDIR_TOKEN)) == 0;
    if (!token && !is_job(name))
        return false;
    const char *pid = name + (token ? strlen(RUNDIR_TOKEN) : 0);
    if (kill((pid_t)strtol(pid, NULL, 10), 0) == 0 || errno != ESRCH)
        return false;
    return token ? is_unlocked(path) : is_refused(path);
}

static void list_place(const char *dir, struct strv *sockets)
{
    struct stat st;
    DIR *d = is_ours(dir, &st) && !(st.st_mode & 077) ? opendir(dir) : NULL;
    for (const struct dirent *e; d && (e = readdir(d));) {
        char *path = xasprintf("%s/%s", dir, e->d_name);
        if (is_stale(path, e->d_name))
            unlink(path);
        else if (is_job(e->d_name))
            strv_push(sockets, path);
        free(path);
    }
    if (d)
        closedir(d);
}

void rundir_list(struct strv *sockets)
{
    for (int i = 0; i < PLACES; i++) {
        char *dir = place_of(i);
        if (dir)
            list_place(dir, sockets);
        free(dir);
    }
}

void rundir_clean(void)
{
    struct strv sockets = {0};
    rundir_list(&sockets);
    strv_finish(&sockets);
}

int rundir_addr(const char *path, struct sockaddr_un *sa, struct ddp_err *err)
{
    *sa = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof sa->sun_path)
        return err_set(err, "'%s' is too long for a socket", path);
    strcpy(sa->sun_path, path);
    return 0;
}
