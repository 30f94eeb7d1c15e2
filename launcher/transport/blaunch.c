/* launcher/transport/blaunch.c - agents as tasks of an LSF job, one blaunch each
 *
 * blaunch(1): "blaunch [-n] host command", from any host of the job. LSF owns the remote
 * task and ends it with the job; its stdin is ours unless -n is given. Without -no-shell
 * the user's shell reads the command; its start-up files may set what the agent needs, as
 * with ssh, so -no-shell is not used. Written from IBM's manual and tested with a
 * stand-in that behaves as the manual says; no LSF was available.
 */
#include "launcher/transport/transport.h"

#include "common/scoped.h"

static void command(const struct msg_hosts *hosts, const unsigned *nodes, size_t n,
                    struct strv *argv)
{
    strv_push(argv, "blaunch");
    strv_push(argv, hosts->hosts[nodes[0]].name);
    OWNED char *quoted = shell_quote(hosts->agent);
    strv_push(argv, quoted);
}

const struct transport transport_blaunch = {.name = "blaunch",
                                            .program = "blaunch",
                                            .source = "lsf",
                                            .lifeline = true,
                                            .command = command};
