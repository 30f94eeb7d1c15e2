/* common/hostset.h - does an address belong to one of a set of hosts?
 *
 * Names are resolved once; unresolved ones are retried, every few seconds at most, when
 * an unknown address is queried: in a cloud a host's name may appear a little later than
 * the host. A query costs one hash lookup, however many hosts.
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

/* These two may wait for a name server, at most 2 s. Ports are ignored. */
bool hostset_has(struct hostset *s, const struct sockaddr *addr);
void hostset_resolve(struct hostset *s);
/* The names that they could not resolve, "n[1-3]", malloc'ed; NULL: none. */
char *hostset_unresolved(const struct hostset *s);

#endif
