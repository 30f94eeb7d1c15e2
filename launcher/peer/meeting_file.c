/* launcher/peer/meeting_file.c - see meeting_file.h */
#include "launcher/peer/meeting_file.h"

#include "common/err.h"
#include "common/mem.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 16 << 10 };

struct meeting_file {
    char *folder, *path; /* owned */
    bool written;
};

static const char *home(void)
{
    const char *dir = getenv("HOME");
    const struct passwd *pw = dir && *dir ? NULL : getpwuid(geteuid());
    return pw ? pw->pw_dir : dir;
}

static int check_folder(const char *folder, struct ddp_err *err)
{
    struct stat st;
    if (mkdir(folder, 0700) < 0 && errno != EEXIST)
        return err_set(err, "cannot make '%s': %s; --peer-key names another folder",
                       folder, strerror(errno));
    if (stat(folder, &st) < 0)
        return err_errno(err, "cannot stat '%s'", folder);
    if (!S_ISDIR(st.st_mode) || st.st_uid != geteuid() || (st.st_mode & 022))
        return err_set(
            err, "'%s' must be a directory of this user that others cannot write to",
            folder);
    return 0;
}

struct meeting_file *meeting_file_create(const char *folder, const char *id,
                                         struct ddp_err *err)
{
    struct secret none = {{0}}, name;
    char hex[SECRET_SIZE * 2 + 1];
    unsigned uid = (unsigned)geteuid();
    struct meeting_file *c = xcalloc(1, sizeof *c);
    if (!folder && !home()) {
        err_set(
            err,
            "no home directory for the peers' file; choose a directory with --peer-key");
        free(c);
        return NULL;
    }
    c->folder = folder ? xstrdup(folder) : xasprintf("%s/.ddprun", home());
    secret_derive(&none, "ddprun card", id, strlen(id), &uid, sizeof uid, &name);
    secret_to_hex(&name, hex);
    c->path = xasprintf("%s/peers-%.32s", c->folder, hex);
    if (check_folder(c->folder, err) < 0) {
        err_prefix(err, "cannot write the peers' file");
        meeting_file_destroy(c);
        return NULL;
    }
    return c;
}

void meeting_file_destroy(struct meeting_file *c)
{
    if (!c)
        return;
    if (c->written)
        unlink(c->path);
    free(c->folder);
    free(c->path);
    free(c);
}

const char *meeting_file_path(const struct meeting_file *c)
{
    return c->path;
}

/* Written to a temporary file and renamed: readers see all of it or nothing. */
int meeting_file_write(struct meeting_file *c, const struct bootstrap *s,
                       struct ddp_err *err)
{
    char *tmp = xasprintf("%s.%d", c->path, (int)getpid()), *text = bootstrap_write(s);
    size_t n = strlen(text);
    unlink(tmp);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    int rc = fd >= 0 && write(fd, text, n) == (ssize_t)n && fsync(fd) == 0 ? 0 : -1;
    if (fd >= 0)
        rc |= close(fd);
    if (rc == 0)
        rc = rename(tmp, c->path);
    if (rc < 0) {
        err_set(err,
                "cannot write '%s' for the peers: %s; --peer-key names another folder",
                c->path, strerror(errno));
        unlink(tmp);
    }
    c->written = rc == 0;
    secret_wipe(text, n);
    free(text);
    free(tmp);
    return rc;
}

/* NFS caches that a name is absent; reading the directory makes the client ask again. */
static void refresh_folder(const char *folder)
{
    DIR *d = opendir(folder);
    while (d && readdir(d))
        ;
    if (d)
        closedir(d);
}

int meeting_file_read(const struct meeting_file *c, struct bootstrap *s,
                      struct ddp_err *err)
{
    refresh_folder(c->folder);
    int fd = open(c->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return errno == ENOENT || errno == ESTALE
                   ? 0
                   : err_errno(err, "cannot read the head's file '%s'", c->path);
    struct stat st;
    char *text = xcalloc(1, FILE_MAX + 1);
    int rc = -1;
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_uid != geteuid() ||
        (st.st_mode & 077))
        err_set(err, "'%s' must be a file of this user that others cannot read", c->path);
    else if (read(fd, text, FILE_MAX) <= 0)
        rc = 0; /* still being written, on a file system without atomic rename */
    else
        rc = bootstrap_parse(text, s, err) < 0
                 ? err_prefix(err, "the head's file '%s'", c->path)
                 : 1;
    secret_wipe(text, FILE_MAX);
    free(text);
    close(fd);
    return rc;
}
