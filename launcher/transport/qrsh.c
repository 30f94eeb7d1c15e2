/* launcher/transport/qrsh.c - agents as tasks of a Grid Engine job, one qrsh -inherit
 * each
 *
 * Tight integration (sge_pe(5)): the tasks are under the job's limits and accounting, and
 * qdel ends them. Each start takes a second or more, mostly waiting, so they run
 * concurrently. Only the host of the job script may start tasks: never a tree.
 *
 * qrsh joins the arguments with blanks and a remote shell reads them again, as with ssh.
 * With -inherit it has few options: no -cwd, hence PWD (the ranks change to their
 * directory themselves), and the library path, since no login shell sets it. -V, which
 * passes everything, fails on functions exported by bash.
 */
#include "launcher/transport/transport.h"

#include "common/mem.h"
#include "launcher/transport/diagnose.h"

#include <stdlib.h>

static void command(const struct msg_hosts *hosts, const unsigned *nodes, size_t n,
                    struct strv *argv)
{
    strv_push(argv, "qrsh");
    strv_push(argv, "-inherit");
    strv_push(argv, "-v");
    strv_push(argv, getenv("LD_LIBRARY_PATH") ? "PWD,LD_LIBRARY_PATH" : "PWD");
    strv_push(argv, hosts->hosts[nodes[0]].name);
    OWNED char *quoted = shell_quote(hosts->agent);
    strv_pushf(argv, "exec %s", quoted);
}

/* Of qrsh 8.1.9. */
static const struct start_failure reasons[] = {
    {"didn't accept task",
     "Grid Engine starts no task of this job there: has its parallel environment "
     "'control_slaves TRUE'? --start ssh does without"},
    {"can't resolve host name", "Grid Engine cannot resolve the name"},
    {"can't find connection", "its execution daemon does not answer; is the host up?"},
    {"got send error", "its execution daemon does not answer; is the host up?"},
    {"got select error", "its execution daemon does not answer; is the host up?"},
    {NULL}};

const struct transport transport_qrsh = {.name = "qrsh",
                                         .program = "qrsh",
                                         .source = "sge",
                                         .lifeline = true,
                                         .command = command,
                                         .reasons = reasons};
