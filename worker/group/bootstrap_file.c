/* worker/group/bootstrap_file.c - file:///path: a file that all ranks see
 *
 * The file begins with "ddpgroup meeting 1, SIZE ranks, NAME" and has a record per
 * rank: "rank", the card's bytes, a newline and the card. Two kinds of locks (open file
 * description locks: they belong to an open file, are released with the process, and
 * work over NFS) protect it:
 *
 * byte 0: held while reading or writing;
 * byte 1 + rank: held by a rank from writing its record until it has read all cards.
 *
 * A record whose rank holds no lock is left over from a run that died or did not clean
 * up: the file is truncated, and the live ranks write their records again. The last
 * rank to read removes the file.
 */
#include "worker/group/bootstrap.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
    PAUSE_MIN_US = 500,
    PAUSE_MAX_US = 20000,
    FILE_BYTES = 64 << 20, /* more than any set of cards takes */
    SEATS = 1024           /* locks checked, at least, where the file has another size */
};

static const char title[] = "ddpgroup meeting 1, ";

struct book {
    const struct bootstrap *m;
    int fd;     /* -1: not open */
    char *text; /* owned: what is in it */
    size_t size;
    struct ddp_value
        *cards; /* data borrowed from `text` while reading; NULL: not there */
    int present;
    bool readable; /* it has our format */
};

static int lock_byte(int fd, off_t byte, short type)
{
    struct flock l = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &l);
}

/* Does another open file hold it? */
static bool is_held(int fd, off_t byte)
{
    struct flock l = {
        .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, F_OFD_GETLK, &l) == 0 && l.l_type != F_UNLCK;
}

static void pause_a_little(int64_t *us)
{
    nanosleep(&(struct timespec){.tv_nsec = *us * 1000}, NULL);
    *us = *us * 2 < PAUSE_MAX_US ? *us * 2 : PAUSE_MAX_US;
}

static int file_err(const struct book *b, const char *what, struct ddp_err *err)
{
    return err_errno(err, "cannot %s '%s'", what, b->m->place);
}

static void close_book(struct book *b)
{
    if (b->fd >= 0)
        close(b->fd);
    b->fd = -1;
}

/* 0: open and locked; 1: not now. The file may have been removed meanwhile; one without
 * a name is not used any more. */
static int enter(struct book *b, struct ddp_err *err)
{
    struct stat st;
    if (b->fd < 0)
        b->fd = open(b->m->place, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (b->fd < 0)
        return file_err(b, "open", err);
    if (lock_byte(b->fd, 0, F_WRLCK) < 0)
        return errno == EAGAIN || errno == EACCES ? 1 : file_err(b, "lock", err);
    if (fstat(b->fd, &st) < 0)
        return file_err(b, "look at", err);
    if (st.st_nlink > 0)
        return 0;
    close_book(b);
    return 1;
}

static int leave(struct book *b, int rc)
{
    if (b->fd >= 0)
        lock_byte(b->fd, 0, F_UNLCK);
    return rc;
}

/* ---- the text ---- */

static int read_text(struct book *b, struct ddp_err *err)
{
    struct stat st;
    if (fstat(b->fd, &st) < 0)
        return file_err(b, "look at", err);
    if (!S_ISREG(st.st_mode) || st.st_size > FILE_BYTES)
        return err_set(err, "'%s' is not a file that ranks meet at", b->m->place);
    free(b->text);
    b->size = (size_t)st.st_size;
    b->text = xcalloc(1, b->size + 1);
    ssize_t n = pread(b->fd, b->text, b->size, 0);
    if (n < 0)
        return file_err(b, "read", err);
    b->size = (size_t)n;
    b->text[n] = '\0';
    return 0;
}

static char *first_line(const struct bootstrap *m)
{
    return xasprintf("%s%d ranks, %s\n", title, m->size, m->name);
}

/* Find the records; `readable`: the file is well-formed to its end. */
static void parse(struct book *b)
{
    char *line = first_line(b->m);
    size_t at = strlen(line);
    memset(b->cards, 0, (size_t)b->m->size * sizeof *b->cards);
    b->present = 0;
    b->readable = b->size >= at && memcmp(b->text, line, at) == 0;
    free(line);
    while (b->readable && at < b->size) {
        int rank = -1, head = 0;
        size_t n = 0;
        if (sscanf(b->text + at, "%d %zu%n", &rank, &n, &head) != 2 || rank < 0 ||
            rank >= b->m->size || b->text[at + (size_t)head] != '\n' ||
            n > b->size - at - (size_t)head - 1 || b->cards[rank].data) {
            b->readable = false;
            break;
        }
        b->cards[rank] = (struct ddp_value){b->text + at + head + 1, n};
        b->present++;
        at += (size_t)head + 1 + n;
    }
}

static int write_at(struct book *b, const char *text, size_t n, off_t at,
                    struct ddp_err *err)
{
    if (pwrite(b->fd, text, n, at) != (ssize_t)n)
        return file_err(b, "write to", err);
    return 0;
}

static int empty(struct book *b, struct ddp_err *err)
{
    char *line = first_line(b->m);
    int rc = ftruncate(b->fd, 0) < 0 ? file_err(b, "empty", err)
                                     : write_at(b, line, strlen(line), 0, err);
    if (rc == 0) {
        b->size = strlen(line);
        b->present = 0;
        memset(b->cards, 0, (size_t)b->m->size * sizeof *b->cards);
    }
    free(line);
    return rc;
}

static int append_mine(struct book *b, const char *card, struct ddp_err *err)
{
    char *record = xasprintf("%d %zu\n%s", b->m->rank, strlen(card), card);
    int rc = write_at(b, record, strlen(record), (off_t)b->size, err);
    free(record);
    return rc;
}

/* ---- ranks that have joined ---- */

static bool is_mine(const struct book *b, const char *card)
{
    const struct ddp_value *v = &b->cards[b->m->rank];
    return v->data && v->size == strlen(card) && memcmp(v->data, card, v->size) == 0;
}

static bool alone_there(const struct book *b)
{
    int seats = b->readable || b->m->size > SEATS ? b->m->size : SEATS;
    for (int r = 0; r < seats; r++) {
        if (r != b->m->rank && is_held(b->fd, 1 + r))
            return false;
    }
    return true;
}

/* Is the file in use by another group, or complete without this rank? */
static bool is_theirs(const struct book *b, const char *card)
{
    bool over = b->readable && b->present == b->m->size && !is_mine(b, card);
    return (over || !b->readable) && b->size > 0 && !alone_there(b);
}

/* Has it records of ranks that have ended? Once all records are there, ranks may leave.
 */
static bool is_stale(const struct book *b, const char *card)
{
    if (!b->readable)
        return true;
    if (b->present == b->m->size && is_mine(b, card))
        return false;
    for (int r = 0; r < b->m->size; r++) {
        if (r != b->m->rank && b->cards[r].data && !is_held(b->fd, 1 + r))
            return true;
    }
    const struct ddp_value *mine = &b->cards[b->m->rank];
    return mine->data &&
           !is_mine(b, card); /* this rank holds the lock, so the writer does not */
}

/* 1: all records are there; 0: not yet; -1. Called with byte 0 locked. */
static int look(struct book *b, const char *card, struct ddp_err *err)
{
    if (read_text(b, err) < 0)
        return -1;
    if (b->size > 0 && strncmp(b->text, title, strlen(title)) != 0)
        return err_set(err,
                       "'%s' is a file of something else: give the path of one that "
                       "need not exist",
                       b->m->place);
    parse(b);
    if (is_theirs(b, card))
        return 0;
    if (is_stale(b, card) && empty(b, err) < 0)
        return -1;
    if (!is_mine(b, card))
        return append_mine(b, card, err);
    return b->present == b->m->size;
}

/* 0: this rank's lock is ours; 1: another process has it. */
static int sit_down(struct book *b, struct ddp_err *err)
{
    if (lock_byte(b->fd, 1 + b->m->rank, F_WRLCK) == 0)
        return 0;
    return errno == EAGAIN || errno == EACCES ? 1 : file_err(b, "lock", err);
}

static int late(const struct book *b, bool seated, struct ddp_err *err)
{
    if (!seated)
        return err_set(err,
                       "another rank %d is at '%s': a run that still goes on, or a "
                       "rank given twice",
                       b->m->rank, b->m->place);
    if (!b->readable)
        return err_set(err, "ranks of another group, or of another size, are at '%s'",
                       b->m->place);
    return bootstrap_late(b->m, "file://", b->cards, err);
}

static int connect_as_named(struct book *b, const char *card, struct ddp_err *err)
{
    bool seated = false;
    for (int64_t pause_us = PAUSE_MIN_US;; pause_a_little(&pause_us)) {
        if (now_ms() >= b->m->deadline_ms)
            return late(b, seated, err);
        bool was_open = b->fd >= 0;
        int rc = enter(b, err);
        if (rc < 0)
            return -1;
        seated = seated && was_open && b->fd >= 0;
        if (rc > 0)
            continue;
        if (!seated && (rc = sit_down(b, err)) < 0)
            return -1;
        seated = seated || rc == 0;
        rc = seated ? look(b, card, err) : 0;
        if (rc != 0) {
            for (int r = 0; r < b->m->size && rc > 0; r++)
                card_copy(&b->cards[r], b->cards[r].data, b->cards[r].size);
            lock_byte(b->fd, 1 + b->m->rank, F_UNLCK);
            if (rc > 0 && alone_there(b))
                unlink(b->m->place);
            return leave(b, rc > 0 ? 0 : -1);
        }
        leave(b, 0);
    }
}

int bootstrap_file(const struct bootstrap *m, const char *card, struct ddp_value *cards,
                   struct ddp_err *err)
{
    struct book b = {.m = m, .fd = -1, .cards = cards};
    int rc = connect_as_named(&b, card, err);
    if (rc < 0) /* they point into the text */
        memset(cards, 0, (size_t)m->size * sizeof *cards);
    close_book(&b);
    free(b.text);
    return rc;
}
