/* launcher/plugins/diagnose/messages.h - ranks that wait for messages of MPI */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_MESSAGES_H
#define LAUNCHER_PLUGINS_DIAGNOSE_MESSAGES_H

#include "launcher/plugins/diagnose/sentence.h"

/* The ranks for which others wait, and which do not wait themselves; else those that wait
 * for each other in a circle. Nothing if neither is known. */
void find_messages(struct job_view *j);

#endif
