/* launcher/cli/container.c - see container.h
 *
 * Each engine is a line of shell, as what it needs is known on the node only: directory,
 * GPUs, user. $0 is the image, "$@" the program. The directory of the job is mounted at
 * its own path, and /tmp, where MPI and PyTorch place their sockets.
 */
#include "launcher/cli/container.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/cli/interpreter.h"

#include <stdlib.h>
#include <string.h>

/* Both mount $HOME and /tmp, and pass the environment on. */
#define APPTAINER(program)                                 \
    "nv=; [ -e /dev/nvidiactl ] && nv=--nv; exec " program \
    " exec $nv --bind \"$PWD\" --pwd \"$PWD\" \"$0\" \"$@\""

/* Only root has no user namespace to keep its id in. The container is removed here:
 * podman's own cleanup process would be ended with the rank. */
#define PODMAN                                                                        \
    "gpu=; [ -e /dev/nvidiactl ] && gpu='--device nvidia.com/gpu=all'; ns=keep-id; "  \
    "[ \"$(id -u)\" = 0 ] && ns=host; name=ddprun-$TORCHELASTIC_RUN_ID-$RANK-$$; "    \
    "trap : TERM INT HUP; podman run --name $name --interactive --env-host "          \
    "--network host --pid host --ipc host --userns $ns --security-opt label=disable " \
    "--log-driver none --pull never $gpu --volume \"$PWD:$PWD\" --volume /tmp:/tmp "  \
    "--workdir \"$PWD\" \"$0\" \"$@\"; code=$?; podman rm --force --ignore $name "    \
    ">/dev/null 2>&1; [ $code = 125 ] && ! podman image exists \"$0\" && "            \
    "echo \"ddprun: error: $(hostname) has no image '$0', and none is pulled here: "  \
    "podman pull $0\" >&2; exit $code"

/* It passes on only what is named: all but what belongs to the host's own system. Values
 * stay in the environment, as others can read arguments. */
#define ENROOT                                                                          \
    "i=$0; for v in $(env | sed -n 's/^\\([A-Za-z_][A-Za-z0-9_]*\\)=.*/\\1/p'); do "    \
    "case $v in PATH|HOME|PWD|SHELL|LD_LIBRARY_PATH) ;; *) e=\"$e --env $v\" ;; esac; " \
    "done; exec enroot start --rw $e --mount \"$PWD:$PWD\" --mount /tmp:/tmp \"$i\" "   \
    "sh -c 'cd \"$0\" && exec \"$@\"' \"$PWD\" \"$@\""

static const struct container_engine {
    const char *name, *command;
} engines[] = {
    {"apptainer", APPTAINER("apptainer")},
    {"singularity", APPTAINER("singularity")},
    {"podman", PODMAN},
    {"enroot", ENROOT},
};

static void wrap(struct opts *opts, char *const *words, size_t n, struct strv *argv,
                 void *arg)
{
    const char *const before[] = {"sh", "-c", arg, opts->container};
    for (size_t i = 0; i < ARRAY_LEN(before); i++)
        strv_push(argv, before[i]);
    for (size_t i = 0; i < n; i++)
        strv_push(argv, words[i]);
}

int container_wrap(struct opts *opts, struct ddp_err *err)
{
    const char *name = opts->container_engine;
    OWNED char *command = NULL;
    for (size_t i = 0; i < ARRAY_LEN(engines) && !command; i++) {
        if (name ? strcmp(name, engines[i].name) == 0
                 : program_in_path(getenv("PATH"), engines[i].name))
            command = xasprintf(
                CONTAINER_MARK
                "%s; command -v %s >/dev/null || { echo \"ddprun: error: --container: "
                "no %s in PATH on $(hostname)\" >&2; exit 127; }; %s",
                engines[i].name, engines[i].name, engines[i].name, engines[i].command);
    }
    if (!command && name)
        return err_set(err,
                       "--container-engine is apptainer, singularity, podman or enroot, "
                       "not '%.80s'",
                       name);
    if (!command)
        return err_set(
            err, "--container: none of apptainer, singularity, podman and enroot is "
                 "in PATH here; --container-engine names that of the hosts");
    programs_rewrite(opts, wrap, command);
    if (!opts->argv[0]) { /* --preflight without a program checks engine and image, too */
        wrap(opts, NULL, 0, &opts->interpreted, command);
        opts->argv = opts->interpreted.v;
    }
    return 0;
}
