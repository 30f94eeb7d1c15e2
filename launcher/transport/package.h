/* launcher/transport/package.h - --agent push: copy the agent's files by ssh
 *
 * What an agent runs (libexec/ddprun) is an archive of some MiB. ssh runs a shell command
 * that looks for it, by its hash, in a few folders of the user; if it is in none, the
 * command asks for it, receives it on stdin, checks the hash, and keeps it for the next
 * time. In both cases the agent then reads its bootstrap lines from the same stdin.
 */
#ifndef LAUNCHER_TRANSPORT_PACKAGE_H
#define LAUNCHER_TRANSPORT_PACKAGE_H

#include "common/digest.h"
#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>

/* The value of --agent. */
#define AGENT_PUSH "push"
bool agent_is_pushed(const char *agent);

/* The shell command writes one of them, on a line of its own; send nothing before. */
#define PACKAGE_IS_THERE "\nddprun-agent: is there\n"
#define PACKAGE_WANTED   "\nddprun-agent: send\n"

struct package {
    char *bytes; /* a tar archive */
    size_t n;
    char hash[DIGEST_TEXT];
};

/* Made at the first call from the files beside this program, by tar(1); never freed.
 * Equal files make equal bytes. NULL with `err`. */
const struct package *package_get(struct ddp_err *err);

/* For any shell on the other host. The caller frees. */
char *package_command(const struct package *p);

#endif
