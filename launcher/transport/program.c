/* launcher/transport/program.c - see program.h */
#include "launcher/transport/program.h"

#include "common/err.h"
#include "common/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const char default_path[] = "/usr/local/bin:/usr/bin:/bin";

/* " on node02", or "" when there is only one host. */
static const char *on_host(const char *host, char *text, size_t size)
{
    text[0] = '\0';
    if (host)
        snprintf(text, size, " on %s", host);
    return text;
}

static char *join(const char *dir, const char *name)
{
    return name[0] == '/' ? xstrdup(name) : xasprintf("%s/%s", dir, name);
}

/* 0, or the errno that execve() would fail with. */
static int usable(const char *path)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return errno;
    if (S_ISDIR(st.st_mode))
        return EISDIR;
    return access(path, X_OK) < 0 ? errno : 0;
}

/* The first executable match in the path; else NULL and the reason in `*why`. */
static char *search(const char *name, const char *dir, const char *path_env, int *why)
{
    *why = ENOENT;
    for (const char *p = path_env;; p++) {
        size_t n = strcspn(p, ":");
        char *entry = n > 0 ? xstrndup(p, n) : xstrdup(".");
        char *base = join(dir, entry), *file = xasprintf("%s/%s", base, name);
        int error = usable(file);
        free(entry);
        free(base);
        if (error == 0)
            return file;
        if (error == EACCES)
            *why = EACCES; /* as execvp(): found but not permitted, unless a later entry
                              works */
        free(file);
        p += n;
        if (*p == '\0')
            return NULL;
    }
}

static bool is_python_script(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot && strcmp(dot, ".py") == 0;
}

/* For an existing file that we may not execute. */
static void advice_no_right(const char *name, const struct stat *st, char *text,
                            size_t size)
{
    uid_t me = geteuid();
    if (me == 0 || me == st->st_uid) {
        snprintf(text, size,
                 is_python_script(name) ? "; try 'python3 %s' or chmod +x"
                                        : "; try chmod +x",
                 name);
        return;
    }
    /* by number: a user name may need a name service that does not answer */
    char owner[24] = "root";
    if (st->st_uid != 0)
        snprintf(owner, sizeof owner, "user %u", (unsigned)st->st_uid);
    snprintf(text, size, "; its mode is %04o, and it belongs to %s",
             (unsigned)st->st_mode & 07777, owner);
}

/* Advice appended to the error line, written into `text`. */
static const char *advice(const char *name, const char *path, int why, const char *dir,
                          char *text, size_t size)
{
    text[0] = '\0';
    struct stat st;
    if (why == ENOENT && strchr(name, ' ')) {
        snprintf(text, size,
                 "; write its arguments as words of their own, not in quotes");
    } else if (why == ENOENT && !strchr(name, '/')) {
        char *here = join(dir, name);
        bool there = stat(here, &st) == 0 && S_ISREG(st.st_mode);
        if (there && is_python_script(name) && access(here, X_OK) < 0)
            snprintf(text, size, " in PATH; to run the one in '%s' write 'python3 %s'",
                     dir, name);
        else if (there)
            snprintf(text, size, " in PATH; to run the one in '%s' write './%s'", dir,
                     name);
        else if (is_python_script(name))
            snprintf(text, size, " in '%s', nor in PATH", dir);
        else
            snprintf(text, size, " in PATH");
        free(here);
    } else if (why == EACCES && path && stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
        struct statvfs fs;
        if (statvfs(path, &fs) == 0 && (fs.f_flag & ST_NOEXEC))
            snprintf(text, size,
                     "; its file system is mounted 'noexec': put it elsewhere");
        else
            advice_no_right(name, &st, text, size);
    } else if (why == ENOEXEC) {
        snprintf(text, size, "; a script begins with '#!' and its interpreter");
    }
    return text;
}

static int cannot(const char *name, const char *path, const char *dir, const char *host,
                  int why, struct ddp_err *err)
{
    char on[300], more[600];
    err_set(err, "cannot run '%s'%s: %s%s", name, on_host(host, on, sizeof on),
            why == ENOENT    ? "no such file or directory"
            : why == EACCES  ? "permission denied"
            : why == EISDIR  ? "it is a directory"
            : why == ENOEXEC ? "not a program this machine can run"
            : why == E2BIG   ? "arguments and environment are too long"
                             : strerror(why),
            advice(name, path, why, dir, more, sizeof more));
    if (why == ENOENT || why == ENOTDIR)
        return EXIT_NOT_FOUND;
    return why == EAGAIN || why == ENOMEM || why == EMFILE || why == ENFILE
               ? EXIT_CANNOT_START
               : EXIT_NOT_EXECUTABLE;
}

static void cannot_enter(const char *dir, const char *host, struct ddp_err *err)
{
    char on[300];
    int why = errno;
    err_set(err, "cannot start%s in directory '%s': %s; --wdir names %s",
            on_host(host, on, sizeof on), dir, strerror(why),
            why == ENOENT || why == ENOTDIR ? "one that is there" : "another");
}

char *program_find(const char *name, const char *dir, const char *path_env,
                   const char *host, int *code, struct ddp_err *err)
{
    int why = ENOENT;
    /* the current directory needs no check; "/." is not there in a file */
    char *path = strcmp(dir, ".") != 0 ? join(dir, ".") : NULL;
    if (path && access(path, X_OK) < 0) {
        cannot_enter(dir, host, err);
        free(path);
        *code = EXIT_CANNOT_START;
        return NULL;
    }
    free(path);
    path = NULL;
    if (strchr(name, '/')) {
        path = join(dir, name);
        why = usable(path);
    } else if (name[0] != '\0') {
        path = search(name, dir, path_env ? path_env : default_path, &why);
        why = path ? 0 : why;
    }
    if (why == 0)
        return path;
    *code = cannot(name, path, dir, host, why, err);
    free(path);
    return NULL;
}

/* Why the interpreter of a script is not found. A Windows line end (CR) becomes part of
 * its name, invisibly. */
static char *interpreter_of(const char *path, const char *name)
{
    char line[200] = "";
    FILE *f = fopen(path, "re");
    if (f) {
        if (!fgets(line, sizeof line, f))
            line[0] = '\0';
        fclose(f);
    }
    const char *start = line + strspn(line, "#! \t");
    int n = (int)strcspn(start, " \t\r\n");
    if (strncmp(line, "#!", 2) != 0 || n == 0)
        return xstrdup("the interpreter it names is not there");
    if (start[n] == '\r')
        return xasprintf("its lines end in CR LF, so '%.*s' is not found; try sed -i "
                         "'s/\\r$//' %s",
                         n, start, name);
    return xasprintf("its interpreter '%.*s' is not there", n, start);
}

int program_failed(const char *name, const char *path, const char *dir, const char *host,
                   enum child_step step, struct ddp_err *err)
{
    int why = errno;
    char on[300];
    on_host(host, on, sizeof on);
    switch (step) {
    case CHILD_EXEC:
        /* the file was found: its interpreter is missing, or it has gone since */
        if (why == ENOENT && (access(path, F_OK) == 0 || errno != ENOENT)) {
            char *wanted = interpreter_of(path, name);
            err_set(err, "cannot run '%s'%s: %s", name, on, wanted);
            free(wanted);
            return EXIT_NOT_EXECUTABLE;
        }
        return cannot(name, path, dir, host, why, err);
    case CHILD_DIR:
        errno = why;
        cannot_enter(dir, host, err);
        break;
    case CHILD_CPUS:
        errno = why;
        err_errno(err, "cannot bind a rank%s to its CPUs", on);
        break;
    case CHILD_OK:
    case CHILD_CLONE:
    case CHILD_SETUP:
        errno = why;
        err_spawn(err, "cannot start '%s'%s", name, on);
        break;
    }
    return EXIT_CANNOT_START;
}

bool program_is_python(const char *path)
{
    const char *name = basename(path);
    return strncmp(name, "python", 6) == 0 &&
           name[6 + strspn(name + 6, "0123456789.t")] == '\0';
}
