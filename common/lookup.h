/* common/lookup.h - the addresses of a name, with a deadline
 *
 * getaddrinfo() waits for name servers that do not answer as long as /etc/resolv.conf
 * says, for one after the other and in one domain after the other: minutes, in which an
 * agent would be taken for dead. Numbers are read at once; for a name it is called in a
 * thread of its own (common/offload.h), which is given up.
 */
#ifndef COMMON_LOOKUP_H
#define COMMON_LOOKUP_H

#include <netdb.h>
#include <stdint.h>

/* As getaddrinfo() with sockets of `type`: 0 with a list that freeaddrinfo() takes, or a
 * code for lookup_error(), one of getaddrinfo()'s or LOOKUP_LATE. `service` may be NULL.
 */
enum { LOOKUP_LATE = 1 }; /* the others are negative */
int lookup(const char *name, const char *service, int type, int64_t deadline_ms,
           struct addrinfo **list);

/* What to say of it, behind a colon. */
const char *lookup_error(int code);

#endif
