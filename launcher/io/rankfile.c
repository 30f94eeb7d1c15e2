/* launcher/io/rankfile.c - see rankfile.h
 *
 * The loop puts records into the queue of a writer, whose thread creates, opens and
 * writes the files, one write() per record, so that `tail -f` sees them grow. At most
 * MAX_OPEN files are open, and a quarter of what the process may open; beyond that the
 * one opened first is closed, and reopened when needed.
 */
#include "launcher/io/rankfile.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/output_path.h"
#include "common/strv.h"
#include "common/utf8.h"
#include "common/write_all.h"
#include "launcher/io/path_check.h"
#include "launcher/io/writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <uthash.h>

enum { MAX_OPEN = 256 };

struct rankfile {
    char *path; /* owned */
    int attempt;
    UT_hash_handle hh; /* in `all`, by path */
    /* used by the writer's thread only */
    int slot;   /* index into `open`, -1: not open now */
    bool begun; /* created: do not truncate it again */
    bool given_up;
};

/* The header of an entry in the queue; the bytes follow. */
struct record {
    struct rankfile *file;
    size_t size;
};

struct rankfiles {
    char *pattern; /* owned */
    char *folder;  /* owned: that of attempt-1, attempt-2 and `current`; NULL: none */
    bool split;    /* separate files for stdout and stderr */
    bool apart;    /* separate files for each attempt */
    bool by_host;  /* the host is in the name */
    int attempt;   /* from 1 */
    int nranks;
    long start_s;
    const char *(*host_of)(int rank, void *arg);
    void *arg;
    struct rankfile **files; /* owned: [rank] or [rank * 2 + stream]; NULL: no byte yet */
    struct rankfile *all;  /* owned: of all attempts, as the writer may still use them */
    struct writer *writer; /* borrowed; NULL: not open */
    /* used by the writer's thread only */
    struct {
        int fd;
        struct rankfile *file; /* borrowed from files; NULL: free */
    } open[MAX_OPEN];
    int most;           /* slots of `open` that are used */
    int hand;           /* the slot to reuse next */
    int linked;         /* the attempt that `current` names */
    const char *failed; /* the first path that could not be written; NULL: none */
};

/* The pattern expanded for files[i]; owned by the caller. */
static char *path_of(const struct rankfiles *f, int i)
{
    int rank = f->split ? i / 2 : i;
    enum out_stream stream = f->split && i % 2 ? OUT_STDERR : OUT_STDOUT;
    char *path = NULL;
    size_t size = 0;
    FILE *m = xmemstream(&path, &size);
    for (const char *p = f->pattern; *p; p++) {
        if (*p != '%') {
            fputc(*p, m);
            continue;
        }
        switch (*++p) {
        case 'r':
            fprintf(m, "%d", rank);
            break;
        case 'h':
            fputs(f->host_of(rank, f->arg), m);
            break;
        case 's':
            fputs(stream == OUT_STDOUT ? "out" : "err", m);
            break;
        case 't':
            fprintf(m, "%ld", f->start_s);
            break;
        case 'a':
            fprintf(m, "%d", f->attempt);
            break;
        default:
            fputc(*p, m);
        }
    }
    xmemclose(m);
    return path;
}

static bool names(const char *pattern, char what)
{
    for (const char *p = strchr(pattern, '%'); p; p = strchr(p + 2, '%')) {
        if (p[1] == what)
            return true;
    }
    return false;
}

static int check_pattern(const char *pattern, int nranks, struct ddp_err *err)
{
    bool rank = !strchr(pattern, '%');
    if (*pattern == '\0')
        return err_set(err, "--output-filename needs the name of a folder or a pattern "
                            "with %%r");
    for (const char *p = strchr(pattern, '%'); p; p = strchr(p + 1, '%')) {
        p++;
        if (*p == '\0' || !strchr("rhsta%", *p))
            return err_set(
                err,
                "unknown '%%%.*s' in --output-filename '%s': %%r rank, %%h "
                "host, %%s out or err, %%t start time, %%a attempt and %%%% are "
                "known",
                utf8_bytes(p), p, pattern);
        rank |= *p == 'r';
    }
    if (!rank && nranks > 1)
        return err_set(err,
                       "--output-filename '%s' names one file for %d ranks: put %%r "
                       "into it",
                       pattern, nranks);
    return 0;
}

int rankfiles_check_paths(const struct rankfiles *f, struct ddp_err *err)
{
    struct strv paths = {0};
    for (int i = 0; i < f->nranks * (f->split ? 2 : 1); i++)
        strv_push_nodup(&paths, path_of(f, i));
    return path_check(&paths, "--output-filename", f->pattern, err);
}

static void shut(struct rankfiles *f, int slot)
{
    if (f->open[slot].file) {
        close(f->open[slot].fd);
        f->open[slot].file->slot = -1;
        f->open[slot].file = NULL;
    }
}

/* Without it nothing is missing, so errors are not reported. */
static void link_current(struct rankfiles *f, int attempt)
{
    OWNED char *to = xasprintf("attempt-%d", attempt);
    OWNED char *link = xasprintf("%s/current", f->folder);
    OWNED char *made = xasprintf("%s.%d", link, (int)getpid());
    if (symlink(to, made) == 0 && rename(made, link) < 0)
        unlink(made);
    f->linked = attempt;
}

/* Locks a regular file, which is then emptied unless this job has `begun` it. -1 with
 * errno EWOULDBLOCK: another job has it open. Locks of fcntl() are the process's: two
 * links to one file do not exclude each other. A file system may have no locks. */
static int lock_file(int fd, bool begun)
{
    struct stat st;
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    if (fcntl(fd, F_SETLK, &all) < 0 && (errno == EAGAIN || errno == EACCES)) {
        errno = EWOULDBLOCK;
        return -1;
    }
    return begun ? 0 : ftruncate(fd, 0);
}

/* 0, or errno. */
static int open_file(struct rankfiles *f, struct rankfile *file)
{
    if (!file->begun)
        path_make_folders(file->path);
    int slot = f->hand;
    f->hand = (f->hand + 1) % f->most;
    shut(f, slot);
    int fd = output_path_fd(file->path, O_APPEND);
    if (fd < 0 || lock_file(fd, file->begun) < 0) {
        int error = errno;
        close_fd(&fd);
        return error;
    }
    if (!file->begun && f->folder && f->linked != file->attempt)
        link_current(f, file->attempt);
    f->open[slot].fd = fd;
    f->open[slot].file = file;
    file->slot = slot;
    file->begun = true;
    return 0;
}

static int put_record(struct rankfiles *f, const struct record *r, const char *data)
{
    struct rankfile *file = r->file;
    if (file->given_up)
        return 0;
    int why = file->slot < 0 ? open_file(f, file) : 0;
    if (why == 0 && write_all(f->open[file->slot].fd, data, r->size) < 0)
        why = errno;
    if (why != 0) {
        file->given_up = true;
        if (file->slot >= 0)
            shut(f, file->slot);
        if (!f->failed) /* once: the loop reads it */
            f->failed = file->path;
    }
    return why;
}

/* The writer's `put`, in its thread. */
static int put_records(void *to, const char *data, size_t size)
{
    int first = 0;
    for (struct record r; size > 0; data += r.size, size -= r.size) {
        memcpy(&r, data, sizeof r);
        data += sizeof r;
        size -= sizeof r;
        int why = put_record(to, &r, data);
        first = first ? first : why;
    }
    return first;
}

static void release(void *to)
{
    struct rankfiles *f = to;
    for (int i = 0; i < MAX_OPEN; i++)
        shut(f, i);
    struct rankfile *file, *next;
    HASH_ITER (hh, f->all, file, next) {
        HASH_DEL(f->all, file);
        free(file->path);
        free(file);
    }
    free(f->files);
    free(f->folder);
    free(f->pattern);
    free(f);
}

/* --- in the loop -------------------------------------------------------------------- */

struct writer *rankfiles_open(struct rankfiles *f, struct loop *loop,
                              const struct writer_events *events, struct ddp_err *err)
{
    f->writer = writer_create(loop, &(struct writer_target){put_records, release, f},
                              events, err);
    return f->writer;
}

const char *rankfiles_failed(const struct rankfiles *f)
{
    return f->failed;
}

static void queue(struct rankfiles *f, struct rankfile *file, const void *data,
                  size_t size)
{
    struct record r = {file, size};
    char *p = writer_reserve(f->writer, sizeof r + size);
    memcpy(mempcpy(p, &r, sizeof r), data, size);
    writer_commit(f->writer, sizeof r + size);
}

/* The rank may be again on a host where it was before. */
static struct rankfile *file_of(struct rankfiles *f, int i)
{
    char *path = path_of(f, i);
    struct rankfile *file;
    HASH_FIND_STR(f->all, path, file);
    if (file) {
        free(path);
        return file;
    }
    file = xcalloc(1, sizeof *file);
    file->path = path;
    file->attempt = f->attempt;
    file->slot = -1;
    HASH_ADD_KEYPTR(hh, f->all, path, strlen(path), file);
    return file;
}

void rankfiles_write(struct rankfiles *f, int rank, enum out_stream stream,
                     const void *data, size_t size)
{
    int i = f->split ? rank * 2 + (int)stream : rank;
    if (!f->files[i])
        f->files[i] = file_of(f, i);
    queue(f, f->files[i], data, size);
}

void rankfiles_add_ranks(struct rankfiles *f, int nranks)
{
    f->files = xgrow(f->files, (size_t)f->nranks * 2, (size_t)nranks * 2,
                     sizeof(struct rankfile *));
    f->nranks = nranks;
}

void rankfiles_next_attempt(struct rankfiles *f, int nranks, const char *line)
{
    int n = nranks * (f->split ? 2 : 1);
    f->attempt++;
    if (f->apart)
        memset(f->files, 0, (size_t)f->nranks * 2 * sizeof *f->files);
    for (int i = 0; i < n; i++) {
        if (!f->files[i])
            continue;
        if (f->by_host)
            f->files[i] = file_of(f, i);
        queue(f, f->files[i], line, strlen(line));
    }
}

static int most_open(void)
{
    struct rlimit limit;
    rlim_t n = getrlimit(RLIMIT_NOFILE, &limit) < 0 ? MAX_OPEN : limit.rlim_cur / 4;
    return n < 1 ? 1 : n < MAX_OPEN ? (int)n : MAX_OPEN;
}

struct rankfiles *rankfiles_create(const char *pattern, int nranks, bool again,
                                   const char *(*host_of)(int rank, void *arg), void *arg,
                                   struct ddp_err *err)
{
    if (check_pattern(pattern, nranks, err) < 0)
        return NULL;
    struct rankfiles *f = xcalloc(1, sizeof *f);
    bool plain = !strchr(pattern, '%');
    f->folder = plain && again ? xstrdup(pattern) : NULL;
    f->pattern = plain
                     ? xasprintf("%s%s/rank.%%r.%%s", pattern, again ? "/attempt-%a" : "")
                     : xstrdup(pattern);
    f->split = names(f->pattern, 's');
    f->apart = names(f->pattern, 'a');
    f->by_host = names(f->pattern, 'h');
    f->most = most_open();
    f->attempt = 1;
    f->nranks = nranks;
    f->start_s = (long)time(NULL);
    f->host_of = host_of;
    f->arg = arg;
    f->files = xcalloc((size_t)nranks * 2, sizeof(struct rankfile *));
    return f;
}

void rankfiles_destroy(struct rankfiles *f)
{
    if (f)
        release(f);
}
