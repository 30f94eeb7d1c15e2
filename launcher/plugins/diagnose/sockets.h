/* launcher/plugins/diagnose/sockets.h - TCP connections of processes */
#ifndef LAUNCHER_PLUGINS_DIAGNOSE_SOCKETS_H
#define LAUNCHER_PLUGINS_DIAGNOSE_SOCKETS_H

#include "launcher/plugins/diagnose/proc.h"

#include <stddef.h>

/* Sets "sockets" in `out` of each: a list of {"state", "local", "peer", "unread",
 * "unsent", "retransmits"}: bytes that the process has not read, and bytes that the other
 * end has not confirmed. The last three only if not 0; a listening socket has
 * "unaccepted", connections, in place of "unread". Only some idle ones of each process
 * are listed; the number of the others is "more_sockets". */
void sockets_describe(const struct described *list, size_t n);

/* On the launcher, with the ranks of all hosts: sets "rank" in each socket whose other
 * end is a socket of a rank. */
void sockets_match(json_t *ranks);

/* A list of sentences on the connections to hosts that do not answer: one, of the worst. */
json_t *sockets_lost(const json_t *ranks);

#endif
