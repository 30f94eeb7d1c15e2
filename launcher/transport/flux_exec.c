/* launcher/transport/flux_exec.c - agents as processes of the brokers of a Flux instance,
 * one flux exec each
 *
 * "flux exec -r RANK command" runs the command as a child of a broker: with the CPUs that
 * the job has on that node, and without an sshd there. Only the owner of an instance may
 * do so, as in flux batch and flux alloc. flux exec forwards stdin and its end; no shell
 * parses the command. A shell runs `flux overlay`, which gives the rank of the host's
 * broker, and then flux exec, so that the launcher does not wait for the former.
 *
 * The environment is ours, but CUDA_VISIBLE_DEVICES names the GPUs of one node. The
 * broker has that of its own node, from the shell of the job in which it runs.
 */
#include "launcher/transport/transport.h"

#include "launcher/transport/diagnose.h"

static const char on_broker[] =
    "unset CUDA_VISIBLE_DEVICES; v=$(tr \"\\0\" \"\\n\" </proc/$PPID/environ | "
    "grep ^CUDA_VISIBLE_DEVICES=) && export \"$v\"; exec \"$0\"";

static void command(const struct msg_hosts *hosts, const unsigned *nodes, size_t n,
                    struct strv *argv)
{
    strv_push(argv, "flux");
    strv_push(argv, "env"); /* runs a command */
    strv_push(argv, "sh");
    strv_push(argv, "-c");
    strv_pushf(argv,
               "r=$(flux overlay lookup \"$0\") && exec flux exec -q -d / -r \"$r\" "
               "sh -c '%s' \"$1\"",
               on_broker);
    strv_push(argv, hosts->hosts[nodes[0]].name);
    strv_push(argv, hosts->agent);
}

static const struct start_failure reasons[] = {
    {"not found in host map",
     "this Flux job has no broker of that name; try --start ssh"},
    {NULL}};

const struct transport transport_flux = {.name = "flux",
                                         .program = "flux",
                                         .source = "flux",
                                         .lifeline = true,
                                         .command = command,
                                         .reasons = reasons};
