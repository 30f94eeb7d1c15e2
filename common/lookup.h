/* common/lookup.h - resolve a host name, with a deadline
 *
 * getaddrinfo() waits for unresponsive name servers as long as /etc/resolv.conf says, one
 * after the other and domain by domain: minutes, in which an agent would be declared
 * lost. Numeric addresses are parsed at once; for a name it is called in a thread
 * (common/offload.h), which is abandoned at the deadline.
 */
#ifndef COMMON_LOOKUP_H
#define COMMON_LOOKUP_H

#include <netdb.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

/* As getaddrinfo() with sockets of `type`: 0 with a list that freeaddrinfo() takes, or a
 * code for lookup_error(), one of getaddrinfo()'s or LOOKUP_LATE. `service` may be NULL.
 */
enum { LOOKUP_LATE = 1 }; /* the others are negative */
int lookup(const char *name, const char *service, int type, int64_t deadline_ms,
           struct addrinfo **list);

/* The address of this host that `name` is reached from. Nothing is sent. */
bool lookup_route(const char *name, int64_t deadline_ms, struct sockaddr_storage *own);

/* The error text, to follow a colon. */
const char *lookup_error(int code);

#endif
