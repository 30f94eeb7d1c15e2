/* launcher/control/rundir.c - see rundir.h */
#include "launcher/control/rundir.h"

#include "common/err.h"
#include "common/mem.h"

#include <dirent.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static void list_place(const char *path, struct strv *sockets)
{
    struct stat st;
    DIR *dir = is_ours(path, &st) && !(st.st_mode & 077) ? opendir(path) : NULL;
    for (const struct dirent *e; dir && (e = readdir(dir));) {
        if (is_job(e->d_name))
            strv_pushf(sockets, "%s/%s", path, e->d_name);
    }
    if (dir)
        closedir(dir);
}

void rundir_list(struct strv *sockets)
{
    for (int i = 0; i < PLACES; i++) {
        char *path = place_of(i);
        if (path)
            list_place(path, sockets);
        free(path);
    }
}

int rundir_addr(const char *path, struct sockaddr_un *sa, struct ddp_err *err)
{
    *sa = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof sa->sun_path)
        return err_set(err, "'%s' is too long for a socket", path);
    strcpy(sa->sun_path, path);
    return 0;
}
