/* launcher/io/path_check.c - see path_check.h */
#include "launcher/io/path_check.h"

#include "common/err.h"
#include "common/log.h"
#include "common/offload.h"
#include "common/output_path.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOG_SUBSYS "output"

enum { CHECK_MS = 5000 };

struct checking {
    struct strv paths;  /* owned: freed by check_paths() */
    const char *option; /* a literal */
    int rc;
    struct ddp_err err;
};

/* Of thousands of new files in one folder, the first is enough. */
static void check_paths(void *copy)
{
    struct checking *c = copy;
    const char *passed = NULL; /* the last new file */
    for (size_t i = 0; i < c->paths.n && c->rc == 0; i++) {
        const char *path = c->paths.v[i], *name = basename(path);
        size_t folder = (size_t)(name - path);
        bool is_new = access(path, F_OK) < 0;
        if (is_new && passed && strncmp(path, passed, folder) == 0 &&
            basename(passed) == passed + folder)
            continue;
        const char *why = output_path_check(path, OUTPUT_PATH_MADE);
        if (why)
            c->rc = err_set(&c->err, "%s: cannot write '%s': %s", c->option, path, why);
        passed = is_new ? path : passed;
    }
    strv_finish(&c->paths);
}

int path_check(struct strv *paths, const char *option, const char *value,
               struct ddp_err *err)
{
    struct checking c = {.paths = *paths, .option = option};
    *paths = (struct strv){0};
    struct offload *a = offload_begin(check_paths, &c, sizeof c, err);
    if (!a) {
        strv_finish(&c.paths);
        return -1;
    }
    const struct checking *done = offload_wait(a, CHECK_MS);
    if (!done)
        log_warn("%s: no answer about '%s' in %d s (stalled file system?)", option, value,
                 CHECK_MS / 1000);
    int rc = done && done->rc < 0 ? err_set(err, "%s", done->err.text) : 0;
    offload_end(a);
    return rc;
}

void path_make_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(path, 0777); /* open() reports the error better */
        *slash = '/';
    }
}
