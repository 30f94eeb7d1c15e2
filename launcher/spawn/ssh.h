/* launcher/spawn/ssh.h - the ssh command for one host, and what its failure means
 *
 * The user's own ssh is run: it knows his configuration, agent, jump hosts and Kerberos.
 */
#ifndef LAUNCHER_SPAWN_SSH_H
#define LAUNCHER_SPAWN_SSH_H

#include "common/strv.h"
#include "launcher/link/message.h"

#include <stdbool.h>

/* The arguments to start an agent on `host`: never asks for anything (BatchMode), and
 * gives up connecting after a while. `ssh` (borrowed) is a command, split at blanks. */
void ssh_command(const struct host *host, const char *ssh, const char *agent,
                 struct strv *argv);

struct ssh_diagnosis {
    char text[512]; /* "node03: cannot resolve the name; look at ..." */
    bool again;     /* it may work when tried again */
};

/* What `said` (its stderr) and its wait status mean. */
void ssh_diagnose(const struct host *host, const char *agent, const char *said,
                  int status, struct ssh_diagnosis *d);

#endif
