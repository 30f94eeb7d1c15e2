/* launcher/plugins/diagnose/messages.h - ranks that wait for messages */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_MESSAGES_H
#define LAUNCHER_PLUGINS_DIAGNOSE_MESSAGES_H

#include "launcher/plugins/diagnose/sentence.h"

/* The ranks for which others wait, and which do not wait themselves; else those that wait
 * for each other in a circle; else those at the ends, which wait for what is not known, as
 * in MPI_Finalize. Nothing if there are none. */
void find_messages(struct job_view *j);

#endif
