/* launcher/main.c - ddprun: parse the command line; find the hosts; run the job
 *
 * Options whose work is another program (a batch script, a page ...) execute that.
 */
#include "common/ambient_launcher.h"
#include "common/err.h"
#include "common/installed.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/stdout.h"
#include "launcher/alloc/source.h"
#include "launcher/cli/cli.h"
#include "launcher/cli/container.h"
#include "launcher/cli/interpreter.h"
#include "launcher/contract.h"
#include "launcher/job/dryrun.h"
#include "launcher/job/job.h"
#include "launcher/job/signals.h"
#include "launcher/peer/local_copies.h"
#include "launcher/peer/peer.h"
#include "launcher/transport/child.h"
#include "launcher/transport/program.h"

#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed(const struct ddp_err *err, int code)
{
    fprintf(stderr, "ddprun: %s\n", err->text);
    return code;
}

/* The hosts do not fit the options; options that are not on the command line are named.
 */
static int refused(const struct opts *opts, const struct ddp_err *err, int code)
{
    OWNED char *origins = cli_origins(opts);
    fprintf(stderr, "ddprun: %s%s\n", err->text, origins);
    return code;
}

/* With --container the image's Python runs, not that of an environment active here. */
static const char *get_no_env(const char *name)
{
    return NULL;
}

static int launch(const struct opts *opts, struct alloc *alloc, struct peers *peers,
                  struct local_copies **copies)
{
    struct ddp_err err;
    struct local_agent local = {.fd = -1};
    struct job *job = job_create(opts, alloc, peers, &err);
    if (!job)
        return refused(opts, &err, EXIT_USAGE);
    int code = EXIT_CANNOT_START;
    int side = job_wants_local_agent(job) ? local_fork(&local, &err) : 1;
    if (side < 0)
        failed(&err, code);
    if (side == 0) { /* only the launcher serves the copies on this node */
        local_copies_forget(*copies);
        *copies = NULL;
    }
    if (side >= 0)
        code = side == 0 ? job_run_agent(job, &local) : job_run(job, &local);
    job_destroy(job);
    if (side != 0 || local.orphaned)
        job_clean(&local);
    return code;
}

/* Ranks start in --wdir, or here. A directory that has been removed has no name. */
static int check_directory(const struct opts *opts, struct ddp_err *err)
{
    OWNED char *here = opts->wdir ? NULL : get_current_dir_name();
    bool found = opts->wdir || here;
    return found ? 0
                 : err_errno(err, "no rank can start in the current directory (--wdir "
                                  "names another)");
}

static int run(struct opts *opts, struct alloc *alloc, struct peers *peers,
               struct local_copies **copies)
{
    struct ddp_err err;
    if (check_directory(opts, &err) < 0 || (!opts->dry_run && child_init(&err) < 0))
        return failed(&err, EXIT_CANNOT_START);
    if (opts->dry_run)
        return dryrun(opts, alloc, &err) < 0 ? refused(opts, &err, EXIT_USAGE) : 0;
    return launch(opts, alloc, peers, copies);
}

/* The only ddprun of the job: find the hosts and start an agent on each. */
static int run_alone(struct opts *opts)
{
    struct ddp_err err;
    cli_warn(opts);
    bool port = opts_given(opts, "master-port"),
         addr = opts->addr_port > 0 && opts_given(opts, "master-addr");
    if (opts_given(opts, "store-port") && (port || addr) &&
        opts->store_port != opts->master_port) {
        err_set(&err, "--store-port %d and %s %d: both are MASTER_PORT; leave one out",
                opts->store_port, port ? "--master-port" : "--master-addr's port",
                opts->master_port);
        return failed(&err, EXIT_USAGE);
    }
    unsetenv("DDPRUN_KEY"); /* for peers only: not passed to ranks */
    if (!opts->store_port)
        opts->store_port = opts->master_port;
    struct alloc *alloc = alloc_read(opts, &err);
    struct local_copies *none = NULL;
    /* the hosts of --host-discovery-script are no mistake in the command line */
    bool listed = opts->discovery && !opts->dry_run;
    int code = alloc ? run(opts, alloc, NULL, &none)
                     : refused(opts, &err, listed ? EXIT_CANNOT_START : EXIT_USAGE);
    alloc_destroy(alloc);
    return code;
}

/* One of several instances, started by another launcher on each node. */
static int run_as_peer(struct opts *opts, struct ambient_job *ambient)
{
    struct peers peers = {.copies_gone_fd = -1};
    struct local_copies *copies = NULL;
    int code;
    if (peer_take_part(opts, ambient, &peers, &copies, &code)) {
        code = run(opts, peers.alloc, &peers, &copies);
        peer_over(&peers, copies, code);
    }
    return code;
}

static int start(struct opts *opts)
{
    struct ddp_err err;
    struct ambient_job ambient = {0};
    int code;
    interpreter_choose(opts, opts->container ? get_no_env : ambient_launcher_env);
    if (opts->container && container_wrap(opts, &err) < 0)
        return failed(&err, EXIT_USAGE);
    if (log_setup("ddprun", NULL, job_log_level(opts), &err) < 0 ||
        (!opts->spawn_number && ambient_job_find(opts, &ambient, &err) < 0))
        code = refused(opts, &err, EXIT_USAGE);
    else
        code = ambient.by ? run_as_peer(opts, &ambient) : run_alone(opts);
    ambient_job_finish(&ambient);
    return code;
}

/* Options whose work is a program of its own (launcher/tools/tool.h); NULL: a launch. */
static const char *tool_of(const struct opts *o)
{
    bool script = o->script != SCHED_NONE || o->submit;
    return o->list_sites   ? "ddprun-script"
           : o->top        ? "ddprun-view"
           : o->scaling    ? "ddprun-scaling"
           : script        ? "ddprun-script"
           : o->fetch_data ? "ddprun-fetch"
           : o->report_on  ? "ddprun-diagnose"
                           : NULL;
}

/* Execute the program `name` with these arguments; argv[0] is replaced by our path. */
static int exec_tool(const char *name, char **argv)
{
    struct ddp_err err;
    OWNED char *path = installed_file(INSTALLED_PROGRAM, name, X_OK);
    OWNED char *self = realpath("/proc/self/exe", NULL);
    argv[0] = self ? self : argv[0];
    child_signals_reset();
    if (path)
        execv(path, argv);
    if (path)
        err_errno(&err, "cannot start '%s'", path);
    else
        err_set(&err, "'%s' is not installed beside ddprun", name);
    return failed(&err, EXIT_CANNOT_START);
}

/* A tool parses our whole command line again; those for a running job get its name. */
static int run_tool(const char *name, const struct opts *opts, char **argv)
{
    bool report = strcmp(name, "ddprun-diagnose") == 0;
    char *for_job[] = {argv[0], report ? (char[]){"--report-on"} : (char[]){"--top"},
                       report ? (char *)(uintptr_t)opts->report_on : opts->argv[0], NULL};
    return exec_tool(name, report || opts->top ? for_job : argv);
}

int main(int argc, char **argv)
{
    struct opts opts;
    struct ddp_err err;
    signals_hold();
    mem_init();
    stdout_reserve(O_RDONLY); /* a write to stdout fails, as it would have */
    signal(SIGCHLD, SIG_DFL); /* else exit statuses are lost */
    int rc = cli_parse(argc, argv, &opts, &err), code = 0;
    if (rc < 0) {
        code = failed(&err, EXIT_USAGE);
    } else if (rc == 0 && opts.show_env) {
        contract_print(stdout);
        if (fflush(stdout) != 0 && err_errno(&err, "cannot write") < 0)
            code = failed(&err, EXIT_USAGE);
    } else if (rc == 0) {
        const char *tool = tool_of(&opts);
        code = tool ? run_tool(tool, &opts, argv) : start(&opts);
    }
    child_finish();
    opts_finish(&opts);
    return code;
}
