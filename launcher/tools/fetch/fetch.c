/* launcher/tools/fetch/fetch.c - see fetch.h
 *
 * Downloads to FILE.part, then renames it to FILE. FILE.part is locked against another
 * ddprun that fetches into the same folder.
 */
#include "launcher/tools/fetch/fetch.h"

#include "common/err.h"
#include "common/installed.h"
#include "common/mem.h"
#include "launcher/tools/fetch/catalog.h"
#include "launcher/transport/program.h"

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

extern char **environ;

/* curl's own exit code for "the server cannot resume" */
enum { CURL_CANNOT_RESUME = 33, MESSAGE_MAX = 400 };

struct fetch {
    char *curl;         /* owned: path of curl(1) */
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
    if (digest_file(path, sum, NULL, err) < 0)
        return -1;
    if (strcmp(sum, f->sha256) != 0)
        return err_set(err, "its SHA-256 is %.12s..., and should be %.12s...", sum,
                       f->sha256);
    return 0;
}

static int make_folders(const char *folder, struct ddp_err *err)
{
    char *path = xstrdup(folder);
    int rc = 0;
    for (char *slash = path; slash && rc == 0;) {
        slash = strchr(slash + 1, '/');
        if (slash)
            *slash = '\0';
        if (mkdir(path, 0777) < 0 && errno != EEXIST)
            rc = err_errno(err, "cannot make the folder '%s'", path);
        if (slash)
            *slash = '/';
    }
    free(path);
    return rc;
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

/* Returns curl's exit code, -1 if it did not exit; `text` gets the end of its stderr. */
static int run_curl(const struct fetch *f, const char *url, const char *part,
                    const char *most, bool resume, char *text, size_t size)
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
    char message[4096];
    size_t have = 0;
    int out[2];
    enum child_step step;
    if (pipe2(out, O_CLOEXEC) < 0)
        return -1;
    struct child_spec spec = {.path = f->curl,
                              .argv = (char *const *)(uintptr_t)argv,
                              .env = environ,
                              .in = -1,
                              .out = -1,
                              .err = out[1]};
    pid_t pid = child_spawn(&spec, &step);
    close(out[1]);
    for (ssize_t n = 1; pid > 0 && n > 0; have += n > 0 ? (size_t)n : 0) {
        if (have > sizeof message / 2) {
            memmove(message, message + sizeof message / 4, have - sizeof message / 4);
            have -= sizeof message / 4;
        }
        n = read(out[0], message + have, sizeof message - have);
    }
    close(out[0]);
    int status = 0;
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    keep_last(message, have, text, size);
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Download from one URL into FILE.part, resuming it. -1 with `err`; FILE.part may then be
 * incomplete. */
static int download(const struct fetch *f, const struct data_file *file, const char *from,
                    const char *part, struct ddp_err *err)
{
    char message[MESSAGE_MAX], most[32];
    size_t n = strlen(from);
    snprintf(most, sizeof most, "%lld", (long long)file->bytes);
    char *url = xasprintf("%s%s%s", from, n && from[n - 1] == '/' ? "" : "/", file->name);
    bool resume = size_of(part) > 0;
    int code = run_curl(f, url, part, most, resume, message, sizeof message);
    if (resume && code == CURL_CANNOT_RESUME && truncate(part, 0) == 0)
        code = run_curl(f, url, part, most, false, message, sizeof message);
    int rc = code == 0  ? 0
             : code < 0 ? err_set(err, "curl cannot be run, or was killed")
                        : err_set(err, "'%s': %s", url,
                                  message[0] ? message : "curl failed without a message");
    free(url);
    return rc;
}

/* Download and verify; a complete file with a wrong checksum is emptied, as resuming
 * cannot repair it. */
static int try_one(const struct fetch *f, const struct data_file *file, const char *from,
                   const char *part, struct ddp_err *err)
{
    if (size_of(part) >= file->bytes && truncate(part, 0) < 0)
        return err_errno(err, "cannot write '%s'", part);
    if (download(f, file, from, part, err) < 0)
        return -1;
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
        return try_one(f, file, f->mirror, part, err);
    for (size_t i = 0; i < f->set->urls.n; i++) {
        struct ddp_err why;
        if (try_one(f, file, f->set->urls.v[i], part, &why) == 0)
            return 0;
        if (i == 0) /* report the error of the first URL */
            *err = why;
    }
    return -1;
}

static int fetch_file(const struct fetch *f, const struct data_file *file,
                      struct ddp_err *err)
{
    char *path = xasprintf("%s/%s", f->folder, file->name);
    char *part = xasprintf("%s.part", path);
    int rc = 0;
    struct ddp_err ignored;
    if (verify(path, file, &ignored) == 0) {
        printf("%s: %lld bytes, is there already\n", path, (long long)file->bytes);
    } else {
        int fd = open(part, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0)
            rc = err_errno(err, "cannot write '%s'", part);
        else if (flock(fd, LOCK_EX | LOCK_NB) < 0 && errno == EWOULDBLOCK)
            rc = err_set(err, "'%s' is being fetched by another ddprun", part);
        else if ((rc = try_all(f, file, part, err)) == 0 &&
                 (rc = give_name(fd, part, path, err)) == 0)
            printf("%s: %lld bytes, SHA-256 verified\n", path, (long long)file->bytes);
        if (fd >= 0 && size_of(part) == 0)
            unlink(part);
        if (fd >= 0)
            close(fd);
    }
    if (rc == 0 && fflush(stdout) != 0)
        rc = err_errno(err, "cannot write");
    free(part);
    free(path);
    return rc;
}

/* --- interface ---------------------------------------------------------------------- */

static char *table_path(void)
{
    char *path = installed_file(INSTALLED_DATA, "datasets.ini", R_OK);
    return path ? path : installed_default(INSTALLED_DATA, "datasets.ini");
}

int fetch_data(const struct opts *opts, struct ddp_err *err)
{
    struct data_set set;
    struct fetch f = {.mirror = opts->data_mirror, .set = &set};
    char *table = opts->data_sets ? xstrdup(opts->data_sets) : table_path();
    int code, rc = catalog_find(table, opts->fetch_data, &set, err);
    free(table);
    if (rc < 0)
        return -1;
    f.folder = opts->data_dir ? opts->data_dir : set.name;
    f.curl = program_find("curl", ".", getenv("PATH"), NULL, &code, err);
    if (!f.curl)
        rc = err_set(err, "--fetch-data needs curl(1), which is not in PATH");
    else
        rc = make_folders(f.folder, err);
    for (size_t i = 0; i < set.nfiles && rc == 0; i++)
        rc = fetch_file(&f, &set.files[i], err);
    free(f.curl);
    data_set_finish(&set);
    return rc;
}
