/* launcher/spawn/ssh.h - the ssh command for one host, and what its failure means
 *
 * The user's own ssh is run: it knows his configuration, agent, jump hosts and Kerberos.
 */
#ifndef LAUNCHER_SPAWN_SSH_H
#define LAUNCHER_SPAWN_SSH_H

#include "launcher/spawn/transport.h"

/* The arguments to start an agent on `host`: never asks for anything (BatchMode), and
 * gives up connecting after a while. `ssh` (borrowed) is a command, split at blanks. */
void ssh_command(const struct host *host, const char *ssh, const char *agent,
                 struct strv *argv);

/* What `said` (its stderr) and its wait status mean. */
void ssh_diagnose(const struct host *host, const char *agent, const char *said,
                  int status, struct diagnosis *d);

#endif
