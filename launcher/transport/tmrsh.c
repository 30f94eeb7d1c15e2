/* launcher/transport/tmrsh.c - agents as tasks of a PBS job, one pbs_tmrsh each
 *
 * "pbs_tmrsh host command ..." asks the job's MOM, through the task manager interface, to
 * run the command on a host of $PBS_NODEFILE, waits for it, and exits with its status
 * (255: its own failure). No shell reads the command. The task has no stdin, its output
 * goes to the job's own files, and it does not end with pbs_tmrsh. Hence the bootstrap
 * file, and an agent that ends only with its link. This is the behaviour of OpenPBS 23;
 * if its MOM cannot run a command it prints nothing readable, and the task ends with 254.
 */
#include "launcher/transport/transport.h"

#include "launcher/transport/diagnose.h"
#include "launcher/transport/program.h"

#include <stdio.h>
#include <sys/wait.h>

static void command(const struct msg_hosts *hosts, const unsigned *nodes, size_t n,
                    struct strv *argv)
{
    strv_push(argv, "pbs_tmrsh");
    strv_push(argv, hosts->hosts[nodes[0]].name);
    strv_push(argv, hosts->agent);
}

static const struct start_failure reasons[] = {
    {"is not a node in job", "PBS reports that it is not a node of this job"}, {NULL}};

enum { MOM_CANNOT_RUN = 254 };

static bool diagnose(const struct msg_hosts *hosts, const struct host *host,
                     const char *output, int status, struct diagnosis *d)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    if (!output[0] && (code == EXIT_CANNOT_START || code == EXIT_NO_BOOTSTRAP))
        snprintf(d->text, sizeof d->text,
                 "%s: the agent there has failed; see the job's error file", host->name);
    else if (!output[0] && code == MOM_CANNOT_RUN)
        diagnose_otherwise(host, hosts->agent, "", output, W_EXITCODE(EXIT_NOT_FOUND, 0),
                           d);
    else
        return false;
    return true;
}

const struct transport transport_tmrsh = {.name = "tmrsh",
                                          .program = "pbs_tmrsh",
                                          .source = "pbs",
                                          .by_file = true,
                                          .command = command,
                                          .reasons = reasons,
                                          .diagnose = diagnose};
