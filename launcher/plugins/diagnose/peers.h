/* launcher/plugins/diagnose/peers.h - the messages for which ranks wait */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_PEERS_H
#define LAUNCHER_PLUGINS_DIAGNOSE_PEERS_H

#include "launcher/plugins/diagnose/sentence.h"

/* Sets `awaited` of the views: the message that a rank waits for, if that is known; of
 * several requests one that its peer has not sent, first one whose peer does not wait
 * itself. Its `stray_tag` is of messages of which the peer has sent more to this rank
 * than this has begun to receive, in `stray_group` if that is another one than that of
 * what it waits for. */
void find_peers(struct job_view *j);

#endif
