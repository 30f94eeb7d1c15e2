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

char *rundir_path(struct ddp_err *err)
{
    const char *runtime = getenv("XDG_RUNTIME_DIR");
    struct stat st;
    char *path = runtime && *runtime == '/' && is_ours(runtime, &st)
                     ? xasprintf("%s/ddprun", runtime)
                     : xasprintf("/tmp/ddprun-%u", (unsigned)geteuid());
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        err_errno(err, "cannot make '%s'", path);
    else if (!is_ours(path, &st) || (st.st_mode & 077))
        err_set(err, "'%s' must be a directory of yours with mode 0700: remove it", path);
    else
        return path;
    free(path);
    return NULL;
}

int rundir_list(struct strv *names, struct ddp_err *err)
{
    char *path = rundir_path(err);
    DIR *dir = path ? opendir(path) : NULL;
    if (path && !dir)
        err_errno(err, "cannot read '%s'", path);
    free(path);
    if (!dir)
        return -1;
    for (const struct dirent *e; (e = readdir(dir));) {
        if (e->d_name[0] != '.')
            strv_push(names, e->d_name);
    }
    closedir(dir);
    return 0;
}

int rundir_addr(const char *name, struct sockaddr_un *sa, struct ddp_err *err)
{
    char *path = rundir_path(err);
    if (!path)
        return -1;
    *sa = (struct sockaddr_un){.sun_family = AF_UNIX};
    int n = snprintf(sa->sun_path, sizeof sa->sun_path, "%s/%s", path, name);
    int rc = n < (int)sizeof sa->sun_path
                 ? 0
                 : err_set(err, "'%s/%s' is too long for a socket", path, name);
    free(path);
    return rc;
}
