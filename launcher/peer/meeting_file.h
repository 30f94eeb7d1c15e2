/* launcher/peer/meeting_file.h - the file through which peers find the head
 *
 * In a directory that all nodes share (default: ~/.ddprun, mode 0700), readable by its
 * owner only: bootstrap lines (link/bootstrap.h) with a random key and the head's
 * addresses. Its name is a hash of the start's id, so concurrent starts do not conflict.
 * Any reader may join; it is removed when all peers have joined.
 */
#ifndef LAUNCHER_PEER_MEETING_FILE_H
#define LAUNCHER_PEER_MEETING_FILE_H

#include "launcher/link/bootstrap.h"

struct meeting_file;

/* `folder` NULL: ~/.ddprun. Created if missing; refused if it belongs to another user or
 * others may write to it. */
struct meeting_file *meeting_file_create(const char *folder, const char *id,
                                         struct ddp_err *err);
void meeting_file_destroy(
    struct meeting_file *c); /* also removes the file it has written */
const char *meeting_file_path(const struct meeting_file *c);

int meeting_file_write(struct meeting_file *c, const struct bootstrap *s,
                       struct ddp_err *err);

/* Returns 1 with `s` filled, 0 when there is no file yet, -1 when it cannot be read or is
 * not private to this user. */
int meeting_file_read(const struct meeting_file *c, struct bootstrap *s,
                      struct ddp_err *err);

#endif
