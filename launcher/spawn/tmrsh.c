/* launcher/spawn/tmrsh.c - agents as tasks of a PBS job, one pbs_tmrsh each
 *
 * "pbs_tmrsh host command ..." asks the job's MOM, by the task manager's interface, to
 * run the command on a host of $PBS_NODEFILE, waits for it, and ends with its exit status
 * (255: its own failure). No shell reads the command. Nothing is passed on: the task has
 * no stdin, its output goes to the job's own files, and it does not end with pbs_tmrsh.
 * Hence the summons in a file, and an agent that ends with its link alone. As OpenPBS 23
 * has it; its MOM says nothing readable of a command that it cannot run there, and ends
 * the task with 254.
 */
#include "launcher/spawn/transport.h"

#include "launcher/spawn/diagnose.h"
#include "launcher/spawn/program.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

static void command(const struct msg_hosts *hosts, const unsigned *nodes, size_t n,
                    struct strv *argv)
{
    strv_push(argv, "pbs_tmrsh");
    strv_push(argv, hosts->hosts[nodes[0]].name);
    strv_push(argv, hosts->agent);
}

enum { MOM_CANNOT_RUN = 254 };

static void diagnose(const struct host *host, const char *agent, const char *said,
                     int status, struct diagnosis *d)
{
    *d = (struct diagnosis){0};
    if (strstr(said, "is not a node in job"))
        snprintf(d->text, sizeof d->text, "%s: PBS says it is not a node of this job",
                 host->name);
    else if (!said[0] && WIFEXITED(status) && WEXITSTATUS(status) == 125)
        snprintf(d->text, sizeof d->text,
                 "%s: the agent there has failed; why stands in the job's own error file",
                 host->name);
    else if (!said[0] && WIFEXITED(status) && WEXITSTATUS(status) == MOM_CANNOT_RUN)
        diagnose_otherwise(host, agent, "pbs_tmrsh", said, W_EXITCODE(EXIT_NOT_FOUND, 0),
                           d);
    else
        diagnose_otherwise(host, agent, "pbs_tmrsh", said, status, d);
}

const struct transport transport_tmrsh = {.name = "tmrsh",
                                          .program = "pbs_tmrsh",
                                          .source = "pbs",
                                          .by_file = true,
                                          .command = command,
                                          .diagnose = diagnose};
