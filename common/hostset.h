/* common/hostset.h - does this address belong to one of these hosts?
 *
 * Names are resolved once; those that could not be resolved are tried again, every few
 * seconds at most, when an unknown address asks: in a cloud the name of a host may exist
 * a little later than the host. An answer costs one hash lookup, however many hosts.
 */
#ifndef COMMON_HOSTSET_H
#define COMMON_HOSTSET_H

#include "common/strv.h"

#include <stdbool.h>
#include <sys/socket.h>

struct hostset;

/* `names` are names or addresses, copied. */
struct hostset *hostset_create(const struct strv *names);
void hostset_destroy(struct hostset *s); /* NULL is fine */

/* May wait for a name server, for 2 s at most. Ports do not matter. */
bool hostset_has(struct hostset *s, const struct sockaddr *addr);

#endif
