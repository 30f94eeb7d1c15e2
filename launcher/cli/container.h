/* launcher/cli/container.h - --container: how a rank starts inside an image
 *
 * The agent stays outside. It starts, signals and admits the processes of a container as
 * it does others: they descend from it and share its process, network and IPC namespaces.
 * So /dev/shm, loopback and GPUs are the host's.
 */
#ifndef LAUNCHER_CLI_CONTAINER_H
#define LAUNCHER_CLI_CONTAINER_H

#include "launcher/opts.h"

#include "include/ddprun/err.h"

/* Put the engine's words in front of each program: those of --container-engine, or of the
 * first engine in PATH. Returns -1 with `err` if there is none. */
int container_wrap(struct opts *opts, struct ddp_err *err);

#endif
