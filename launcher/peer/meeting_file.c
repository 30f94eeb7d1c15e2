/* launcher/peer/meeting_file.c - see meeting_file.h */
#include "launcher/peer/meeting_file.h"

#include "common/digest.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/text_file.h"

#include <dirent.h>
#include <errno.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_MAX = 16 << 10 };

struct meeting_file {
    char *folder, *path;       /* owned */
    char written[DIGEST_TEXT]; /* of what it has been given; "": nothing */
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
    char now[DIGEST_TEXT];
    int64_t size;
    if (*c->written && digest_file(c->path, now, &size, NULL) == 0 &&
        strcmp(now, c->written) == 0)
        unlink(c->path); /* else it is another head's by now */
    free(c->folder);
    free(c->path);
    free(c);
}

const char *meeting_file_path(const struct meeting_file *c)
{
    return c->path;
}

int meeting_file_write(struct meeting_file *c, const struct bootstrap *s,
                       struct ddp_err *err)
{
    OWNED char *text = bootstrap_write(s);
    size_t n = strlen(text);
    int rc = text_file_replace(c->path, text, n, 0600);
    if (rc < 0)
        err_set(err,
                "cannot write '%s' for the peers: %s; --peer-key names another folder",
                c->path, strerror(errno));
    else
        digest_bytes(text, n, c->written);
    secret_wipe(text, n);
    return rc;
}

/* NFS caches that a name is absent; reading the directory makes the client ask again. */
static void refresh_folder(const char *folder)
{
    SCOPED(close_folder) DIR *d = opendir(folder);
    while (d && readdir(d))
        ;
}

int meeting_file_read(const struct meeting_file *c, struct bootstrap *s,
                      struct ddp_err *err)
{
    refresh_folder(c->folder);
    int rc = 0;
    SCOPED(close_fd) int fd = text_file_open_private(c->path, err);
    if (fd < 0)
        return errno == ENOENT || errno == ESTALE ? 0
                                                  : err_prefix(err, "the head's file");
    OWNED char *text = xcalloc(1, FILE_MAX + 1);
    if (read(fd, text, FILE_MAX) > 0) /* else still being written: no atomic rename */
        rc = bootstrap_parse(text, s, err) < 0
                 ? err_prefix(err, "the head's file '%s'", c->path)
                 : 1;
    secret_wipe(text, FILE_MAX);
    return rc;
}
