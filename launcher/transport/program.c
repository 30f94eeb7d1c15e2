/* launcher/transport/program.c - see program.h */
#include "launcher/transport/program.h"

#include "common/err.h"
#include "common/mem.h"
#include "common/read_start.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const char default_path[] = "/usr/local/bin:/usr/bin:/bin";

/* " on node02", or "" when there is only one host; malloc'ed. */
static char *on_host(const char *host)
{
    return host ? xasprintf(" on %s", host) : xstrdup("");
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
        OWNED char *entry = n > 0 ? xstrndup(p, n) : xstrdup(".");
        OWNED char *base = join(dir, entry);
        char *file = xasprintf("%s/%s", base, name);
        int error = usable(file);
        if (error == 0)
            return file;
        free(file);
        if (error == EACCES)
            *why = EACCES; /* as execvp(): found but not permitted, unless a later entry
                              works */
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
static char *advice_no_right(const char *name, const struct stat *st)
{
    uid_t me = geteuid();
    if (me == 0 || me == st->st_uid)
        return xasprintf(is_python_script(name) ? "; try 'python3 %s' or chmod +x"
                                                : "; try chmod +x",
                         name);
    /* by number: a user name may need a name service that does not answer */
    OWNED char *owner =
        st->st_uid == 0 ? xstrdup("root") : xasprintf("user %u", (unsigned)st->st_uid);
    return xasprintf("; its mode is %04o, and it belongs to %s",
                     (unsigned)st->st_mode & 07777, owner);
}

/* For a name that is in no directory of PATH. */
static char *advice_no_path(const char *name, const char *dir)
{
    struct stat st;
    OWNED char *here = join(dir, name);
    bool found = *name && stat(here, &st) == 0, there = found && S_ISREG(st.st_mode);
    if (found && S_ISDIR(st.st_mode))
        return xasprintf(" in PATH; the one in '%s' is a directory", dir);
    if (there && is_python_script(name) && access(here, X_OK) < 0)
        return xasprintf(" in PATH; to run the one in '%s' write 'python3 %s'", dir,
                         name);
    if (there)
        return xasprintf(" in PATH; to run the one in '%s' write './%s'", dir, name);
    return is_python_script(name) ? xasprintf(" in '%s', nor in PATH", dir)
                                  : xstrdup(" in PATH");
}

/* Advice appended to the error line; malloc'ed. */
static char *advice(const char *name, const char *path, int why, const char *dir)
{
    struct stat st;
    struct statvfs fs;
    if (why == ENOENT && name[strcspn(name, "/=")] == '=')
        return xasprintf("; to set a variable write '-x %.200s'", name);
    if (why == ENOENT && strchr(name, ' '))
        return xstrdup("; write its arguments as words of their own, not in quotes");
    if (why == ENOENT && !strchr(name, '/'))
        return advice_no_path(name, dir);
    if (why == ENOEXEC)
        return xstrdup("; a script begins with '#!' and its interpreter");
    if (why != EACCES || !path || stat(path, &st) < 0 || !S_ISREG(st.st_mode))
        return xstrdup("");
    return statvfs(path, &fs) == 0 && (fs.f_flag & ST_NOEXEC)
               ? xstrdup("; its file system is mounted 'noexec': put it elsewhere")
               : advice_no_right(name, &st);
}

/* What follows "#!" in a script; "": it is none. */
static const char *first_line(const char *path, char *line, size_t size)
{
    bool script = read_start(path, line, size) > 2 && strncmp(line, "#!", 2) == 0;
    return script ? line + 2 + strspn(line + 2, " \t") : "";
}

static int word_len(const char *word)
{
    return (int)strcspn(word, " \t\r\n");
}

/* A Windows line end (CR) becomes part of the name, invisibly. malloc'ed; NULL: none. */
static char *line_end_trouble(const char *word, const char *name)
{
    int n = word_len(word);
    if (n == 0 || word[n] != '\r')
        return NULL;
    return xasprintf("its lines end in CR LF, so '%.*s' is not found; try sed -i "
                     "'s/\\r$//' %s",
                     n, word, name);
}

/* Why a script does not run whose interpreter is not there; malloc'ed. */
static char *interpreter_trouble(const char *path, const char *name)
{
    char line[200], *trouble;
    const char *word = first_line(path, line, sizeof line);
    if ((trouble = line_end_trouble(word, name)))
        return trouble;
    return *word ? xasprintf("its interpreter '%.*s' is not there", word_len(word), word)
                 : xstrdup("the interpreter it names is not there");
}

/* Why env(1) would not find the interpreter of a script, and print words of its own in
 * each rank; malloc'ed. NULL: there is nothing to say, as after an option of env. */
static char *env_trouble(const char *path, const char *name)
{
    char line[200];
    const char *word = first_line(path, line, sizeof line);
    int n = word_len(word);
    if (n <= 4 || memcmp(word + n - 4, "/env", 4) != 0)
        return NULL;
    word += n;
    word += strspn(word, " \t");
    return *word == '-' ? NULL : line_end_trouble(word, name);
}

char *program_script_trouble(const char *path, const char *name)
{
    char line[200];
    const char *word = first_line(path, line, sizeof line);
    OWNED char *interpreter = xstrndup(word, (size_t)word_len(word));
    if (*word == '/' && access(interpreter, F_OK) < 0)
        return interpreter_trouble(path, name);
    char *trouble = line_end_trouble(word, name);
    return trouble ? trouble : env_trouble(path, name);
}

/* Takes `why` over. Returns the exit code. */
static int script_fails(const char *name, const char *host, char *why,
                        struct ddp_err *err)
{
    OWNED char *on = on_host(host);
    err_set(err, "cannot run '%s'%s: %s", name, on, why);
    free(why);
    return EXIT_NOT_EXECUTABLE;
}

static int cannot(const char *name, const char *path, const char *dir, const char *host,
                  int why, struct ddp_err *err)
{
    OWNED char *on = on_host(host);
    OWNED char *more = advice(name, path, why, dir);
    err_set(err, "cannot run '%s'%s: %s%s", name, on,
            why == ENOENT    ? "no such file or directory"
            : why == EACCES  ? "permission denied"
            : why == EISDIR  ? "it is a directory"
            : why == ENOEXEC ? "not a program this machine can run"
            : why == E2BIG   ? "arguments and environment are too long"
                             : strerror(why),
            more);
    if (why == ENOENT || why == ENOTDIR)
        return EXIT_NOT_FOUND;
    return why == EAGAIN || why == ENOMEM || why == EMFILE || why == ENFILE
               ? EXIT_CANNOT_START
               : EXIT_NOT_EXECUTABLE;
}

static void cannot_enter(const char *dir, const char *host, struct ddp_err *err)
{
    int why = errno;
    OWNED char *on = on_host(host);
    err_set(err, "cannot start%s in directory '%s': %s; --wdir names %s", on, dir,
            strerror(why),
            why == ENOENT || why == ENOTDIR ? "one that is there" : "another");
}

char *program_find(const char *name, const char *dir, const char *path_env,
                   const char *host, int *code, struct ddp_err *err)
{
    int why = ENOENT;
    /* the current directory needs no check; "/." is not there in a file */
    OWNED char *inside = strcmp(dir, ".") != 0 ? join(dir, ".") : NULL;
    if (inside && access(inside, X_OK) < 0) {
        cannot_enter(dir, host, err);
        *code = EXIT_CANNOT_START;
        return NULL;
    }
    char *path = NULL;
    if (strchr(name, '/')) {
        path = join(dir, name);
        why = usable(path);
    } else if (name[0] != '\0') {
        path = search(name, dir, path_env ? path_env : default_path, &why);
        why = path ? 0 : why;
    }
    char *trouble = why == 0 ? env_trouble(path, name) : NULL;
    if (why == 0 && !trouble)
        return path;
    *code = trouble ? script_fails(name, host, trouble, err)
                    : cannot(name, path, dir, host, why, err);
    free(path);
    return NULL;
}

int program_failed(const char *name, const char *path, const char *dir, const char *host,
                   enum child_step step, struct ddp_err *err)
{
    int why = errno;
    OWNED char *on = on_host(host);
    switch (step) {
    case CHILD_EXEC:
        /* the file was found: its interpreter is missing, or it has gone since */
        if (why == ENOENT && (access(path, F_OK) == 0 || errno != ENOENT))
            return script_fails(name, host, interpreter_trouble(path, name), err);
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
