/* launcher/tools/fetch/main.c - ddprun-fetch: --fetch-data, which downloads a data set on
 * the front end, before the job
 *
 * Compute nodes often have no internet access. Downloads the files of a known data set
 * into a folder by curl(1): resumes an interrupted download to FILE.part, checks size and
 * SHA-256, and only then renames it to FILE. So an existing file is correct and is not
 * fetched again. FILE.part is locked against another ddprun that fetches into the same
 * folder.
 */
#include "common/err.h"
#include "common/helper.h"
#include "common/installed.h"
#include "common/mem.h"
#include "launcher/tools/fetch/catalog.h"
#include "launcher/tools/tool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef DDPRUN_DATADIR
#define DDPRUN_DATADIR "/usr/share/ddprun"
#endif

/* curl's own exit code for "the server cannot resume"; bytes of its messages; ms: it
 * gives up by itself when nothing comes for half a minute */
enum { CURL_CANNOT_RESUME = 33, MESSAGE_MAX = 400, MESSAGES_MAX = 4096 };
enum { EXIT_NOT_FETCHED = 1, WEEK_MS = 7 * 24 * 3600 * 1000 };

struct fetch {
    const char *mirror; /* borrowed; NULL: the set's URLs */
    const char *folder; /* borrowed */
    const struct data_set *set;
};

/* --- files -------------------------------------------------------------------------- */

static int64_t size_of(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
}

/* Check size, then SHA-256. */
static int verify(const char *path, const struct data_file *f, struct ddp_err *err)
{
    char sum[DIGEST_TEXT];
    int64_t size = size_of(path);
    if (size != f->bytes)
        return err_set(err, "%lld bytes instead of %lld", (long long)size,
                       (long long)f->bytes);
    TRY(digest_file(path, sum, NULL, err));
    if (strcmp(sum, f->sha256) != 0)
        return err_set(err, "its SHA-256 is %.12s..., and should be %.12s...", sum,
                       f->sha256);
    return 0;
}

static int make_folders(const char *folder, struct ddp_err *err)
{
    OWNED char *path = xstrdup(folder);
    for (char *slash = path; slash;) {
        slash = strchr(slash + 1, '/');
        if (slash)
            *slash = '\0';
        if (mkdir(path, 0777) < 0 && errno != EEXIST)
            return err_errno(err, "cannot make the folder '%s'", path);
        if (slash)
            *slash = '/';
    }
    return 0;
}

/* fsync() before rename(): FILE is complete even after a power failure. */
static int give_name(int fd, const char *part, const char *path, struct ddp_err *err)
{
    if (fsync(fd) < 0 || rename(part, path) < 0)
        return err_errno(err, "cannot make '%s'", path);
    return 0;
}

/* --- curl --------------------------------------------------------------------------- */

/* Keep the end of curl's stderr, without the prefix "curl: (22) ". */
static void keep_last(const char *message, size_t n, char *text, size_t size)
{
    while (n > 0 && strchr("\r\n ", message[n - 1]))
        n--;
    size_t start = n;
    while (start > 0 && message[start - 1] != '\n')
        start--;
    const char *p = message + start;
    int skip = 0;
    sscanf(p, "curl: (%*d) %n", &skip);
    snprintf(text, size, "%.*s", (int)(n - start - (size_t)skip), p + skip);
}

/* Returns curl's exit code, -1 if it was not run; `text` gets the end of its stderr, or
 * why. */
static int run_curl(const char *url, const char *part, const char *most, bool resume,
                    char *text, size_t size)
{
    const char *argv[] = {"curl",
                          "--fail",
                          "--location",
                          "--silent",
                          "--show-error",
                          "--connect-timeout",
                          "15",
                          "--speed-limit",
                          "1",
                          "--speed-time",
                          "30",
                          "--max-filesize",
                          most,
                          "--output",
                          part,
                          "--continue-at",
                          resume ? "-" : "0",
                          "--",
                          url,
                          NULL};
    const struct helper h = {.argv = argv,
                             .err_too = true,
                             .group = true,
                             .answer_ms = WEEK_MS,
                             .most = MESSAGES_MAX};
    OWNED char *said = NULL;
    size_t n;
    int status;
    if (helper_ask(&h, &said, &n, &status) < 0) {
        snprintf(text, size, "curl(1) cannot be run: %s", strerror(errno));
        return -1;
    }
    keep_last(said, n, text, size);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Download from one URL into FILE.part, resuming it. -1 with `err`; FILE.part may then be
 * incomplete. */
static int download(const struct data_file *file, const char *from, const char *part,
                    struct ddp_err *err)
{
    char message[MESSAGE_MAX], most[32];
    size_t n = strlen(from);
    snprintf(most, sizeof most, "%lld", (long long)file->bytes);
    OWNED char *url =
        xasprintf("%s%s%s", from, n && from[n - 1] == '/' ? "" : "/", file->name);
    bool resume = size_of(part) > 0;
    int code = run_curl(url, part, most, resume, message, sizeof message);
    if (resume && code == CURL_CANNOT_RESUME && truncate(part, 0) == 0)
        code = run_curl(url, part, most, false, message, sizeof message);
    return code == 0  ? 0
           : code < 0 ? err_set(err, "%s", message)
                      : err_set(err, "'%s': %s", url,
                                message[0] ? message : "curl failed without a message");
}

/* Download and verify; a complete file with a wrong checksum is emptied, as resuming
 * cannot repair it. */
static int try_one(const struct data_file *file, const char *from, const char *part,
                   struct ddp_err *err)
{
    if (size_of(part) >= file->bytes && truncate(part, 0) < 0)
        return err_errno(err, "cannot write '%s'", part);
    TRY(download(file, from, part, err));
    if (verify(part, file, err) == 0)
        return 0;
    if (truncate(part, 0) < 0)
        return err_errno(err, "cannot write '%s'", part);
    return err_prefix(err, "'%s' from '%s' is wrong", file->name, from);
}

static int try_all(const struct fetch *f, const struct data_file *file, const char *part,
                   struct ddp_err *err)
{
    if (size_of(part) == file->bytes && verify(part, file, err) == 0)
        return 0; /* interrupted between the last byte and the rename */
    if (f->mirror)
        return try_one(file, f->mirror, part, err);
    for (size_t i = 0; i < f->set->urls.n; i++) {
        struct ddp_err why;
        if (try_one(file, f->set->urls.v[i], part, &why) == 0)
            return 0;
        if (i == 0) /* report the error of the first URL */
            *err = why;
    }
    return -1;
}

/* By one ddprun at a time. */
static int fetch_locked(const struct fetch *f, const struct data_file *file,
                        const char *path, struct ddp_err *err)
{
    OWNED char *part = xasprintf("%s.part", path);
    SCOPED(close_fd)
    int fd = open(part, O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);
    if (fd < 0)
        return err_errno(err, "cannot write '%s'", part);
    int rc;
    if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
        rc = err_set(err, "'%s' is being fetched by another ddprun", part);
    else if ((rc = try_all(f, file, part, err)) == 0)
        rc = give_name(fd, part, path, err);
    if (size_of(part) == 0)
        unlink(part);
    return rc;
}

static int fetch_file(const struct fetch *f, const struct data_file *file,
                      struct ddp_err *err)
{
    OWNED char *path = xasprintf("%s/%s", f->folder, file->name);
    struct ddp_err ignored;
    bool there = verify(path, file, &ignored) == 0;
    if (!there)
        TRY(fetch_locked(f, file, path, err));
    printf("%s: %lld bytes, %s\n", path, (long long)file->bytes,
           there ? "is there already" : "SHA-256 verified");
    return fflush(stdout) == 0 ? 0 : err_errno(err, "cannot write");
}

/* --- interface ---------------------------------------------------------------------- */

static char *table_path(void)
{
    char *path = installed_file(INSTALLED_DATA, "datasets.ini", R_OK);
    return path ? path : installed_default(INSTALLED_DATA, "datasets.ini");
}

/* A line per file, or the first one that failed, and why. */
int tool_run(const struct opts *opts, char *const *argv, struct ddp_err *err)
{
    SCOPED(data_set_finish) struct data_set set = {0};
    OWNED char *table = opts->data_sets ? xstrdup(opts->data_sets) : table_path();
    TRY(catalog_find(table, opts->fetch_data, &set, err));
    const struct fetch f = {.mirror = opts->data_mirror,
                            .folder = opts->data_dir ? opts->data_dir : set.name,
                            .set = &set};
    int rc = make_folders(f.folder, err);
    for (size_t i = 0; i < set.nfiles && rc == 0; i++)
        rc = fetch_file(&f, &set.files[i], err);
    if (rc == 0)
        return 0;
    fprintf(stderr, "ddprun: %s\n", err->text);
    return EXIT_NOT_FETCHED;
}
