/* launcher/transport/ssh.h - the ssh command for one host, and the diagnosis of its
 * failure
 *
 * The user's own ssh is run: it has the user's configuration, agent, jump hosts and
 * Kerberos.
 */
#ifndef LAUNCHER_TRANSPORT_SSH_H
#define LAUNCHER_TRANSPORT_SSH_H

#include "launcher/transport/transport.h"

/* The arguments to start an agent on `host`: never prompts (BatchMode), and limits the
 * time to connect. `ssh` (borrowed) is a command, split at blanks. */
void ssh_command(const struct host *host, const char *ssh, const char *agent,
                 struct strv *argv);

/* Explain `output` (its stderr) and its wait status; true. */
bool ssh_diagnose(const struct msg_hosts *hosts, const struct host *host,
                  const char *output, int status, struct diagnosis *d);

#endif
