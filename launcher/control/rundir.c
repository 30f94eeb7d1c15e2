/* launcher/control/rundir.c - see rundir.h */
#include "launcher/control/rundir.h"

#include "common/ancestry.h"
#include "common/err.h"
#include "common/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* A directory of ours; or, if it may be `missing`, nothing. */
static bool is_ours(const char *path, struct stat *st, bool missing)
{
    *st = (struct stat){0};
    if (lstat(path, st) < 0)
        return missing && errno == ENOENT;
    return S_ISDIR(st->st_mode) && st->st_uid == geteuid();
}

/* Both places; the first may not be there. A job of a scheduler has no XDG_RUNTIME_DIR,
 * a login on its node has one. */
enum { PLACES = 2 };

/* to make a file, while others remove the directory */
enum { TRIES = 100 };

static char *place_of(int i)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat st;
    if (i == 1)
        return xasprintf("/tmp/ddprun-%u", (unsigned)geteuid());
    return runtime && *runtime == '/' && is_ours(runtime, &st, false)
               ? xasprintf("%s/ddprun", runtime)
               : NULL;
}

static char *own_place(void)
{
    char *path = place_of(0);
    return path ? path : place_of(1);
}

/* -1 with `err`. When 0, it may be gone again. */
static int make_dir(const char *path, struct ddp_err *err)
{
    struct stat st;
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return err_errno(err, "cannot make '%s'", path);
    if (!is_ours(path, &st, true) || (st.st_mode & 077))
        return err_set(err,
                       "'%s' must be a directory of yours with mode 0700: remove it, or "
                       "set XDG_RUNTIME_DIR to another one",
                       path);
    return 0;
}

int rundir_make(int (*make)(const char *dir, void *arg), void *arg, struct ddp_err *err)
{
    OWNED char *path = own_place();
    int fd = -1, rc = 0;
    errno = ENOENT;
    for (int i = 0; rc == 0 && fd < 0 && errno == ENOENT && i < TRIES; i++) {
        if ((rc = make_dir(path, err)) == 0)
            fd = make(path, arg);
    }
    if (rc == 0 && fd < 0)
        err_errno(err, "cannot make a file in '%s'", path);
    return fd;
}

void rundir_leave(void)
{
    OWNED char *path = own_place();
    rmdir(path);
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
    SCOPED(close_fd)
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    return fd >= 0 && rundir_addr(path, &sa, NULL) == 0 &&
           connect(fd, (struct sockaddr *)&sa, sizeof sa) < 0 && errno == ECONNREFUSED;
}

static bool is_unlocked(const char *path)
{
    SCOPED(close_fd) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    return fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) == 0;
}

/* One that is not here may be in another namespace of pids, with the same /tmp. */
static bool is_running(const char *pid)
{
    struct ancestry_proc p;
    return ancestry_read((pid_t)strtol(pid, NULL, 10), &p) && p.state != 'Z';
}

/* Was its launcher killed? One that runs may not have locked its token yet, or not
 * listen at its socket, which has another name until it does (control.c). */
static bool is_stale(const char *path, const char *name)
{
    size_t token = strlen(RUNDIR_TOKEN);
    if (strncmp(name, RUNDIR_TOKEN, token) == 0)
        return !is_running(name + token) && is_unlocked(path);
    if (name[0] == '.')
        return is_job(name + 1) && !is_running(name + 1) && is_refused(path);
    return is_job(name) && is_refused(path);
}

static void list_place(const char *dir, struct strv *sockets)
{
    struct stat st;
    bool safe = is_ours(dir, &st, false) && !(st.st_mode & 077);
    SCOPED(close_folder) DIR *d = safe ? opendir(dir) : NULL;
    bool removed = false;
    for (const struct dirent *e; d && (e = readdir(d));) {
        OWNED char *path = xasprintf("%s/%s", dir, e->d_name);
        if (is_stale(path, e->d_name))
            removed |= unlink(path) == 0;
        else if (is_job(e->d_name))
            strv_push(sockets, path);
    }
    if (removed)
        rmdir(dir); /* if it is empty */
}

void rundir_list(struct strv *sockets)
{
    for (int i = 0; i < PLACES; i++) {
        OWNED char *dir = place_of(i);
        if (dir)
            list_place(dir, sockets);
    }
}

void rundir_clean(void)
{
    SCOPED(strv_finish) struct strv sockets = {0};
    rundir_list(&sockets);
}

int rundir_addr(const char *path, struct sockaddr_un *sa, struct ddp_err *err)
{
    *sa = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof sa->sun_path)
        return err_set(err, "'%s' is too long for a socket", path);
    strcpy(sa->sun_path, path);
    return 0;
}
