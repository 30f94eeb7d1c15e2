/* worker/group/bootstrap_file.c - file:///path: a file that all ranks see
 *
 * Rank 0 listens at a free port and writes to the file: a title, the size and name of
 * the group, and where it listens. The cards are then exchanged as for tcp://. Meanwhile
 * rank 0 holds locks on the file (open file description locks: they belong to an open
 * file, are released with the process, and work over NFS), so that what an earlier run
 * has left is not taken for an address: one before it writes, against another rank 0, and
 * one when it has written; the others read the file once they have seen the second. Then
 * rank 0 removes the file.
 */
#include "worker/group/bootstrap.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/scoped.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Pauses grow, since all ranks may wait long, and ask one file server. */
enum { PAUSE_MS = 1, PAUSE_MAX_MS = 50, TEXT_BYTES = 1024 };

static const char title[] = "ddpgroup meeting ", version[] = "3, ";

/* Rank 0 holds the first from before it writes, the second when its text is in the file:
 * on NFS a lock first sends to the server what has been written. */
static const struct flock place_lock = {.l_type = F_WRLCK,
                                        .l_whence = SEEK_SET,
                                        .l_len = 1},
                          text_lock = {
                              .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1};

static int file_err(const struct bootstrap *m, const char *what, struct ddp_err *err)
{
    return err_errno(err, "cannot %s '%s'", what, m->place);
}

/* NFS says ESTALE of a file that another host has removed. */
static int none_if_stale(const struct bootstrap *m, const char *what, struct ddp_err *err)
{
    return errno == ESTALE ? 0 : file_err(m, what, err);
}

/* A user who can read the file learns rank 0's address; one who owns it can replace it.
 */
static bool is_private(const struct stat *st)
{
    return S_ISREG(st->st_mode) && st->st_uid == geteuid() && !(st->st_mode & 077);
}

/* Opens the file, and reads what is in it. *fd is -1, and the text empty, if there is
 * none. */
static int open_file(const struct bootstrap *m, int flags, int *fd, char text[TEXT_BYTES],
                     struct ddp_err *err)
{
    struct stat st;
    text[0] = '\0';
    *fd = open(m->place, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (*fd < 0)
        return errno == ENOENT && !(flags & O_CREAT) ? 0 : none_if_stale(m, "open", err);
    int rc = fstat(*fd, &st);
    bool is_file = rc == 0 && is_private(&st);
    ssize_t n = is_file ? pread(*fd, text, TEXT_BYTES - 1, 0) : rc;
    text[n > 0 ? n : 0] = '\0';
    if (is_file && (n == 0 || strncmp(text, title, sizeof title - 1) == 0))
        return 0;
    rc = n < 0 ? none_if_stale(m, "read", err)
               : err_set(err,
                         "'%s' is a file of something else, or others can read it: "
                         "give the path of one that need not exist",
                         m->place);
    close_fd(fd);
    return rc;
}

/* Rank 0: the file of this name, locked, with the text in it; -1. */
static int write_file(struct bootstrap *m, const char *text, struct ddp_err *err)
{
    char before[TEXT_BYTES];
    struct stat st;
    int pause_ms = PAUSE_MS;
    for (int fd; now_ms() < m->deadline_ms;
         close(fd), bootstrap_pause(m, &pause_ms, PAUSE_MAX_MS)) {
        TRY(open_file(m, O_RDWR | O_CREAT, &fd, before, err));
        bool locked = fd >= 0 && fcntl(fd, F_OFD_SETLK, &place_lock) == 0;
        if (fd < 0 || (locked ? fstat(fd, &st) < 0 || st.st_nlink == 0
                              : errno == EAGAIN || errno == EACCES))
            continue; /* another process has removed it, or has it */
        if (locked && ftruncate(fd, 0) == 0 &&
            pwrite(fd, text, strlen(text), 0) == (ssize_t)strlen(text) &&
            fcntl(fd, F_OFD_SETLK, &text_lock) == 0)
            return fd;
        file_err(m, locked ? "write to" : "lock", err);
        close(fd);
        return -1;
    }
    return err_set(err,
                   "another rank 0 is at '%s': a run that still goes on, or a rank given "
                   "twice",
                   m->place);
}

/* The other ranks: what a rank 0 that is there has written behind `line`. */
static int read_file(struct bootstrap *m, const char *line, char value[BOOTSTRAP_VALUE],
                     struct ddp_err *err)
{
    bool others = false; /* another group is there */
    bool left = false;   /* the file is, and no rank 0 */
    char text[TEXT_BYTES];
    size_t n = strlen(line);
    int pause_ms = PAUSE_MS;
    for (int fd; now_ms() < m->deadline_ms; bootstrap_pause(m, &pause_ms, PAUSE_MAX_MS)) {
        struct flock lock = text_lock;
        TRY(open_file(m, O_RDONLY, &fd, text, err));
        bool there =
            fd >= 0 && fcntl(fd, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
        close_fd(&fd);
        if (there) { /* that text may be older, and NFS checks its cache at open() */
            TRY(open_file(m, O_RDONLY, &fd, text, err));
            close_fd(&fd);
        }
        others = there && *text;
        left = !there && *text;
        if (others && strncmp(text, line, n) == 0 && strchr(text + n, '\n')) {
            snprintf(value, BOOTSTRAP_VALUE, "%.*s", (int)strcspn(text + n, "\n"),
                     text + n);
            return 0;
        }
    }
    return err_set(err,
                   others ? "ranks of another group, or of another size, are at '%s'"
                   : left ? "rank 0 has not come to file://%s in time; the rank 0 that "
                            "has written it has ended"
                          : "rank 0 has not come to file://%s in time",
                   m->place);
}

static int share_by_file(struct bootstrap *m, char value[BOOTSTRAP_VALUE],
                         struct ddp_err *err)
{
    OWNED char *line = xasprintf("%s%s%d ranks, %s\n", title, version, m->size, m->name);
    OWNED char *text = xasprintf("%s%s\n", line, value);
    if (m->rank > 0)
        return read_file(m, line, value, err);
    m->held = write_file(m, text, err);
    return m->held < 0 ? -1 : 0;
}

int bootstrap_file(struct bootstrap *m, struct ddp_err *err)
{
    m->held = -1;
    int rc = bootstrap_by_value(m, share_by_file, m->place, err);
    if (m->held >= 0) {
        unlink(m->place);
        close(m->held);
    }
    return rc;
}
