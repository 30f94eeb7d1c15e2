/* launcher/plugins/preload/preload_known.c - see preload.h
 *
 * Starting an interpreter that shares nothing costs a launch 20 ms or more: skip it where
 * the script's text, or the record of an earlier launch, shows that nothing can be
 * shared. A wrong answer costs only the shared import.
 */
#include "launcher/plugins/preload/preload.h"

#include "common/digest.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/read_start.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { SCRIPT_SIZE = 64 << 10, RECORD_SIZE = 64 << 10, RECORD_S = 24 * 60 * 60 };

/* --- the script's text -------------------------------------------------------------- */

static bool needs_no_torch(const char *name, size_t n)
{
    static const char *const known[] = {
        "__future__", "argparse",  "asyncio",    "collections", "csv",     "ctypes",
        "datetime",   "functools", "gc",         "getpass",     "glob",    "io",
        "itertools",  "jax",       "json",       "logging",     "math",    "matplotlib",
        "mpi4py",     "numpy",     "os",         "pandas",      "pathlib", "pickle",
        "platform",   "random",    "re",         "resource",    "scipy",   "shutil",
        "signal",     "socket",    "statistics", "string",      "struct",  "subprocess",
        "sys",        "tempfile",  "tensorflow", "threading",   "time",    "traceback",
        "types",      "typing",    "warnings"};
    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (strlen(known[i]) == n && memcmp(known[i], name, n) == 0)
            return true;
    }
    return false;
}

/* "a.b as c, d": whether all are known. The list may go on in another line. */
static bool names_need_no_torch(const char *at)
{
    do {
        at += strspn(at, ", \t");
        if (!needs_no_torch(at, strcspn(at, ". \t,;#\r\n")))
            return false;
        at += strcspn(at, ",;#\\\n");
    } while (*at == ',');
    return *at != '\\';
}

static bool part_of_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* The next "import" that is a word, in comments and strings too; NULL: none. */
static const char *next_import(const char *text, const char *at)
{
    while ((at = strstr(at, "import")) &&
           ((at > text && part_of_name(at[-1])) || part_of_name(at[6])))
        at += 6;
    return at;
}

/* Whether the "import" at `at` begins its line, or follows "from NAME" there, and imports
 * what is known. Behind other text there may be any statement. */
static bool import_needs_no_torch(const char *text, const char *at)
{
    const char *line = at;
    while (line > text && line[-1] != '\n')
        line--;
    line += strspn(line, " \t");
    if (line == at)
        return names_need_no_torch(at + 6);
    if (strncmp(line, "from", 4) != 0 || (line[4] != ' ' && line[4] != '\t'))
        return false;
    const char *name = line + 4 + strspn(line + 4, " \t");
    size_t n = strcspn(name, " \t\n");
    return needs_no_torch(name, strcspn(name, ". \t")) &&
           name + n + strspn(name + n, " \t") == at;
}

static bool text_needs_no_torch(const char *text)
{
    if (strstr(text, "torch"))
        return false;
    for (const char *at = text; (at = next_import(text, at)); at += 6) {
        if (!import_needs_no_torch(text, at))
            return false;
    }
    return true;
}

int preload_script_fits(const char *path, char *const *argv,
                        const struct preload_script *is, struct ddp_err *why)
{
    OWNED char *text = xcalloc(1, SCRIPT_SIZE);
    const char *script = argv[is->at], *file = is->at ? script : path;
    struct stat st;
    ssize_t n = 0;
    int rc = 0;
    /* reading a pipe here would take the script from the rank */
    if (!is->option && stat(file, &st) == 0 && !S_ISREG(st.st_mode) &&
        !S_ISDIR(st.st_mode))
        rc = err_set(why, "'%s' is not a regular file", file);
    else if (!is->option)
        n = read_start(file, text, SCRIPT_SIZE);
    bool whole = is->option == 'c' || (!is->option && n > 0 && n < SCRIPT_SIZE - 1);
    if (whole && text_needs_no_torch(is->option ? script : text))
        rc = err_set(
            why, "the script does not begin with an import of torch: it has no import "
                 "that may load it");
    return rc;
}

/* --- what an earlier launch has found ----------------------------------------------- */

char *preload_record(const struct preload_spec *spec, const struct preload_script *is,
                     const struct strv *common, const char *apart)
{
    const char *cache = strv_env_get(common, "XDG_CACHE_HOME");
    const char *home = strv_env_get(common, "HOME");
    const char *python_path = strv_env_get(common, "PYTHONPATH");
    OWNED char *cwd = getcwd(NULL, 0);
    OWNED char *key = NULL;
    char digest[DIGEST_TEXT];
    size_t size;
    if (!(cache && *cache) && !(home && *home))
        return NULL;
    FILE *f = xmemstream(&key, &size);
    fprintf(f, "%s\n%s\n%s\n%s\n%s", spec->path, cwd ? cwd : "", spec->modules, apart,
            python_path ? python_path : "");
    for (size_t i = 0; i <= is->at; i++)
        fprintf(f, "\n%s", spec->argv[i]);
    xmemclose(f);
    digest_bytes(key, size, digest);
    bool own = cache && *cache;
    return xasprintf("%s%s/ddprun/preload/no-%.16s", own ? cache : home,
                     own ? "" : "/.cache", digest);
}

/* Is PATH of a line "TIME PATH" unchanged? TIME is its mtime in ns; -1: was missing. */
static bool unchanged(const char *line)
{
    char *path;
    struct stat st;
    int64_t ns = strtoll(line, &path, 10);
    if (*path != ' ')
        return false;
    return stat(path + 1, &st) < 0
               ? ns == -1
               : (int64_t)st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec == ns;
}

int preload_known(const char *record, struct ddp_err *why)
{
    struct stat st;
    if (stat(record, &st) < 0 || !S_ISREG(st.st_mode) ||
        time(NULL) - st.st_mtime >= RECORD_S || time(NULL) < st.st_mtime)
        return 0;
    OWNED char *text = xcalloc(1, RECORD_SIZE);
    ssize_t n = read_start(record, text, RECORD_SIZE);
    char *rest, *reason = strtok_r(text, "\n", &rest), *line;
    bool holds = n > 0 && n < RECORD_SIZE - 1 && reason;
    while (holds && (line = strtok_r(NULL, "\n", &rest)))
        holds = unchanged(line);
    return holds ? err_set(why, "%s (recorded in '%s')", reason, record) : 0;
}
