/* launcher/transport/bootstrap_file.h - bootstrap lines for agents without stdin
 *
 * A file in the user's home directory, which the hosts of a cluster share, readable only
 * by the user. The agent's arguments, which others can see, name the file and nothing
 * else. The reader removes it; the starter removes an unread one when the transport
 * process has ended.
 */
#ifndef LAUNCHER_TRANSPORT_BOOTSTRAP_FILE_H
#define LAUNCHER_TRANSPORT_BOOTSTRAP_FILE_H

#include "launcher/link/bootstrap.h"

/* Returns the path, malloc'ed, or NULL with `err`; errno is ETIMEDOUT if the directory
 * has not answered in 5 s; a file that is written later is removed. */
char *bootstrap_file_write(const char *text, struct ddp_err *err);
/* Removes a file, and frees the path; NULL is fine. Waits for a second at most. */
void bootstrap_file_remove(char *path);
/* Refuses a file of another user, or one that others can read. Removes it if its name is
 * one that bootstrap_file_write() makes and it was read. */
int bootstrap_file_read(const char *path, struct bootstrap *s, struct ddp_err *err);

#endif
