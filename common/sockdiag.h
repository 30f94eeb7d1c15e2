/* common/sockdiag.h - query the owner of a local TCP socket from the kernel */
#ifndef COMMON_SOCKDIAG_H
#define COMMON_SOCKDIAG_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/types.h>

struct sock_owner {
    uid_t uid;
    uint64_t inode; /* as in "socket:[4711]" below /proc/PID/fd */
    unsigned state; /* TCP_ESTABLISHED, TCP_CLOSE_WAIT, ... of netinet/tcp.h */
};

/* A netlink socket for sockdiag_find(); -1 where there is none (some containers) or the
 * kernel has no module for it. */
int sockdiag_open(void);
bool sockdiag_serves_tcp(int netlink); /* for tests */

/* The established connection, not closed yet, with the local end `from` and the remote
 * end `to`. IPv4-mapped addresses are IPv4. `netlink` -1: read /proc/net/tcp and tcp6
 * instead. -1: errno is ENOENT if there is none, and another if that cannot be read. */
int sockdiag_find(int netlink, const struct sockaddr *from, const struct sockaddr *to,
                  struct sock_owner *owner, struct ddp_err *err);

/* The socket that listens on a TCP port of this host, at any address. Reads /proc/net. */
bool sockdiag_find_listener(int port, struct sock_owner *owner);

#endif
