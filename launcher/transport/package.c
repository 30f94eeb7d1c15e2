/* launcher/transport/package.c - see package.h */
#include "launcher/transport/package.h"

#include "common/err.h"
#include "common/helper.h"
#include "common/installed.h"
#include "common/mem.h"
#include "common/strv.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAR_MS = 20000, PACKAGE_MAX = 64 << 20 };

bool agent_is_pushed(const char *agent)
{
    return strcmp(agent, AGENT_PUSH) == 0;
}

/* Only these files of a build directory. */
static const char *const files[] = {"ddprun-agent",
                                    "ddprun-topo",
                                    "ddprun-pmix",
                                    "ddprun-diagnose",
                                    "ddprun-mpi-calls.so",
                                    "ddprun-mpi-calls-large.so",
                                    "ddprun-gpus",
                                    "ssh_config",
                                    "preload/sitecustomize.py"};

/* -C directory files...: owners, times and modes are normalized */
static const char *const tar[] = {
    "tar",       "-c",        "--sort=name",     "--mtime=@0",
    "--owner=0", "--group=0", "--numeric-owner", "--mode=u=rwX,go=",
    "-f",        "-",         "--format=ustar",  "--exclude=__pycache__",
    "-C"};

static char *make_archive(const char *folder, size_t *n, struct ddp_err *err)
{
    SCOPED(strv_finish) struct strv argv = {0};
    for (size_t i = 0; i < ARRAY_LEN(tar); i++)
        strv_push(&argv, tar[i]);
    strv_push(&argv, folder);
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        OWNED char *path = xasprintf("%s/%s", folder, files[i]);
        if (access(path, R_OK) == 0) {
            const char *slash = strchr(files[i], '/'); /* the whole directory */
            strv_pushf(&argv, "%.*s", slash ? (int)(slash - files[i]) : 100, files[i]);
        }
    }
    struct helper h = {
        .argv = (const char *const *)argv.v, .answer_ms = TAR_MS, .most = PACKAGE_MAX};
    char *bytes;
    int status, rc = helper_ask(&h, &bytes, n, &status);
    if (rc == 0 && status == 0)
        return bytes;
    if (rc < 0)
        err_spawn(err, "--agent push: cannot run 'tar'");
    else
        err_set(err, "--agent push: tar cannot read the agent's files in '%s'", folder);
    free(bytes);
    return NULL;
}

const struct package *package_get(struct ddp_err *err)
{
    static struct package made;
    if (made.bytes)
        return &made;
    OWNED char *agent = installed_file(INSTALLED_PROGRAM, "ddprun-agent", X_OK);
    if (!agent) {
        err_set(err, "--agent push: there is no ddprun-agent beside ddprun's programs");
        return NULL;
    }
    *strrchr(agent, '/') = '\0';
    made.bytes = make_archive(agent, &made.n, err);
    if (!made.bytes)
        return NULL;
    digest_bytes(made.bytes, made.n, made.hash);
    return &made;
}

/* One line without ' and !, so that sh and csh read the same. $h and $n are the hash and
 * the number of bytes, $a the agent's path. A directory is tested for execute permission
 * and free space before the archive is requested. own() tests one that it has entered, and
 * that is in its place: in /tmp another user could replace a link between two tests by
 * name. Hosts may share a home: mv fails if another one was faster, and only an agent that
 * does not run is removed. */
static const char script[] =
    "m=$(umask); umask 077; u=ddprun-$(id -u); "
    "set -- \"${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}\" /dev/shm /tmp /var/tmp; "
    "own() { p=$(cd \"$1\" && pwd -P)/$u; cd \"$p\" && [ -O . ] && "
    "[ \"$(pwd -P)\" = \"$p\" ] && echo \"$p\"; }; "
    "for d; do p=$(own \"$d\" 2>/dev/null) || continue; a=$p/$h/ddprun-agent; "
    "if [ -O \"$a\" ] && \"$a\" --version >/dev/null 2>&1; then "
    "echo; echo \"ddprun-agent: is there\"; umask $m; exec \"$a\"; fi; done; "
    "for d; do mkdir -p -m 700 \"$d/$u\" 2>/dev/null; "
    "p=$(own \"$d\" 2>/dev/null) || continue; "
    "if chmod 700 \"$p\" && w=$(mktemp -d \"$p/new.XXXXXX\") && "
    "echo \"#\" >\"$w/try\" && chmod 700 \"$w/try\" && \"$w/try\" && "
    "head -c $n /dev/zero >\"$w/tar\"; then w=$w; else rm -rf \"$w\"; continue; fi "
    "2>/dev/null; "
    "echo; echo \"ddprun-agent: send\"; head -c $n >\"$w/tar\"; s=$(sha256sum <\"$w/tar\"); "
    "if [ \"$s\" = \"$h  -\" ] && tar -xf \"$w/tar\" -C \"$w\"; then "
    "rm -f \"$w/tar\" \"$w/try\"; a=$p/$h/ddprun-agent; "
    "if mv -T \"$w\" \"$p/$h\" || \"$a\" --version; then rm -rf \"$w\"; "
    "else rm -rf \"$p/$h\"; mv -T \"$w\" \"$p/$h\"; fi >/dev/null 2>&1; "
    "\"$a\" --version >/dev/null 2>&1 && umask $m && exec \"$a\"; "
    "echo \"the agent does not run there: $(\"$a\" --version 2>&1 | tail -n 1)\" >&2; "
    "exit 125; fi; "
    "rm -rf \"$w\"; echo \"the agent did not arrive whole in $p\" >&2; exit 125; "
    "done; "
    "echo \"no folder for the agent: none of $* lets us write %zu MiB and run "
    "programs\" >&2; exit 125";

char *package_command(const struct package *p)
{
    OWNED char *head = xasprintf("exec sh -c 'h=%s; n=%zu; ", p->hash, p->n);
    OWNED char *body = xasprintf(script, (p->n >> 20) + 1);
    return xasprintf("%s%s'", head, body);
}
