/* launcher/main.c - ddprun: the life of a launch, as a list */
#include "common/err.h"
#include "common/log.h"
#include "launcher/alloc/alloc.h"
#include "launcher/cli.h"
#include "launcher/contract.h"
#include "launcher/dryrun.h"
#include "launcher/fetch/fetch.h"
#include "launcher/job.h"
#include "launcher/script/script.h"
#include "launcher/spawn/child.h"
#include "launcher/spawn/program.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

enum { EXIT_NOT_FETCHED = 1, EXIT_USAGE = 2 };

static int failed(const struct ddp_err *err, int code)
{
    fprintf(stderr, "ddprun: %s\n", err->text);
    return code;
}

/* Whoever starts us with 0, 1 or 2 closed shall not find our sockets there. */
static void fill_std_fds(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDWR);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

static void on_line(const char *text, void *arg)
{
    puts(text);
}

static int launch(const struct opts *opts, struct alloc *alloc)
{
    struct ddp_err err;
    struct local_agent local = {.fd = -1};
    struct job *job = job_create(opts, alloc, &err);
    if (!job)
        return failed(&err, EXIT_USAGE);
    int code = EXIT_CANNOT_START;
    int side = job_wants_local_agent(job) ? local_fork(&local, &err) : 1;
    if (side < 0)
        failed(&err, code);
    else
        code = side == 0 ? job_be_agent(job, &local) : job_run(job, &local);
    job_destroy(job);
    return code;
}

int main(int argc, char **argv)
{
    struct opts opts;
    struct ddp_err err;
    fill_std_fds();
    int rc = cli_parse(argc, argv, &opts, &err), code = 0;
    if (rc < 0) {
        code = failed(&err, EXIT_USAGE);
    } else if (rc == 0 && opts.show_env) {
        contract_print(on_line, NULL);
        if (fflush(stdout) != 0 && err_errno(&err, "cannot write") < 0)
            code = failed(&err, EXIT_USAGE);
    } else if (rc == 0 && opts.list_sites) {
        site_list(on_line, NULL);
        if (fflush(stdout) != 0 && err_errno(&err, "cannot write") < 0)
            code = failed(&err, EXIT_USAGE);
    } else if (rc == 0 && (opts.script != SCHED_NONE || opts.submit)) {
        code = script_run(&opts, argv, &err) < 0 ? failed(&err, EXIT_USAGE) : 0;
    } else if (rc == 0 && opts.fetch_data) {
        if (child_init(&err) < 0 || fetch_data(&opts, &err) < 0)
            code = failed(&err, EXIT_NOT_FETCHED);
    } else if (rc == 0) {
        struct alloc *alloc = NULL;
        if (log_setup("ddprun", NULL, job_log_level(&opts), &err) < 0)
            code = failed(&err, EXIT_USAGE);
        else if (!(alloc = alloc_read(&opts, &err)))
            code = failed(&err, EXIT_USAGE);
        else if (opts.dry_run)
            code = dryrun(&opts, alloc, &err) < 0 ? failed(&err, EXIT_USAGE) : 0;
        else if (child_init(&err) < 0)
            code = failed(&err, EXIT_CANNOT_START);
        else
            code = launch(&opts, alloc);
        alloc_destroy(alloc);
    }
    child_finish();
    opts_finish(&opts);
    return code;
}
