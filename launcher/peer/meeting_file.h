/* launcher/peer/meeting_file.h - the card that the head leaves for its peers
 *
 * A file in a folder that all nodes share (default: ~/.ddprun, mode 0700), readable by
 * its owner alone: the summons of link/bootstrap.h, with a fresh key and where to call.
 * Its name is a hash of what names this one start, so that starts do not meet each
 * other's. Who can read it is who may join; it is taken away when everybody has.
 */
#ifndef LAUNCHER_PEER_MEETING_FILE_H
#define LAUNCHER_PEER_MEETING_FILE_H

#include "launcher/link/bootstrap.h"

struct meeting_file;

/* `folder` NULL: ~/.ddprun. It is made when it is not there, and refused when it is not
 * ours or others may write to it. */
struct meeting_file *meeting_file_create(const char *folder, const char *id,
                                         struct ddp_err *err);
void meeting_file_destroy(
    struct meeting_file *c); /* and take back what meeting_file_leave() left */
const char *meeting_file_path(const struct meeting_file *c);

int meeting_file_leave(struct meeting_file *c, const struct bootstrap *s,
                       struct ddp_err *err);

/* Returns 1 with the summons, 0 when there is no card (yet), -1 when there is one that
 * cannot be trusted or read. */
int meeting_file_read(const struct meeting_file *c, struct bootstrap *s,
                      struct ddp_err *err);

#endif
