/* common/sock.h - TCP sockets: listen, connect with a deadline
 *
 * Every returned descriptor is non-blocking and close-on-exec, with TCP_NODELAY where
 * applicable. Nothing here resolves addresses to names.
 */
#ifndef COMMON_SOCK_H
#define COMMON_SOCK_H

#include "common/sock_addr.h"
#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct strv;

/* Listen on `addr` (a name, an address, or NULL: every interface, both families if
 * available) and `port` (0: any free one). The backlog is the kernel's somaxconn. Returns
 * the descriptor or -1; `*bound` (may be NULL) gets the port. */
int sock_listen(const char *addr, int port, int *bound, struct ddp_err *err);

/* Reserve a free TCP port of this machine for another process: as long as the descriptor
 * is open the kernel does not assign the port to sockets that ask for any free one, but a
 * process that sets SO_REUSEADDR, as servers do, can listen on it. Returns the descriptor
 * or -1. */
int sock_reserve(int *port, struct ddp_err *err);

/* Connect to a host until `deadline_ms` (now_ms() scale). Its addresses are tried in turn
 * and share the time.
 * A refused connection is tried again with growing pauses (5 ms to 250 ms) when `retry`.
 * errno is ENXIO if the name cannot be resolved. */
int sock_connect(const char *host, int port, int64_t deadline_ms, bool retry,
                 struct ddp_err *err);
/* The same; time in which this process is stopped (common/limit.h) moves the deadline. */
int sock_connect_extend(const char *host, int port, int64_t *deadline_ms, bool retry,
                        struct ddp_err *err);

/* Wait for poll()'s `events` on a descriptor, until `deadline_ms`: 0, or -1 with errno. A
 * hang-up counts as an event. If the deadline has passed, what is ready now counts:
 * a loop whose peer may send without end compares the clock itself. Time in which this
 * process is stopped (common/limit.h) does not count; sock_await_extend() moves the
 * caller's deadline by it. */
int sock_await(int fd, short events, int64_t deadline_ms);
int sock_await_extend(int fd, short events, int64_t *deadline_ms);
/* Read or write all `n` bytes, until `deadline_ms`. -1 with errno: ETIMEDOUT, or
 * ECONNRESET when the peer has closed. Writing to a socket never raises SIGPIPE. */
int sock_read_all(int fd, void *p, size_t n, int64_t deadline_ms);
int sock_write_all(int fd, const void *p, size_t n, int64_t deadline_ms);

/* Send up to SOCK_FDS descriptors over a unix socket, with one byte; does not wait. */
enum { SOCK_FDS = 6 };
int sock_send_fds(int fd, const int *fds, size_t n);
/* Receive one of them, alone in its packet; -1 with errno: EMFILE if this process has no
 * room for it, EBADMSG if there is none. */
int sock_recv_fd(int fd);

int sock_set_nonblock(int fd, bool on);
void sock_set_nodelay(int fd);
void sock_set_keepalive(int fd, int idle_s, int interval_s, int count);
/* True if an accepted connection has been reset. Check this after asking the kernel about
 * its two addresses: by then a new connection may have them. */
bool sock_was_reset(int fd);
/* Is a segment or a probe of a TCP connection unacknowledged? If not, the peer's kernel
 * is up as far as ours can tell, whatever its process does. Always true where there is no
 * such kernel (pipes). */
bool sock_unanswered(int fd);

/* The address of the interface `name` (NULL: the first that is up, not loopback, and not
 * a bridge or pair of containers: docker*, virbr*, veth*, br-*, cni*, lxc*), IPv4 first.
 * Returns 0 with the text, -1 when there is none. */
int sock_interface_addr(const char *name, char *text, size_t size, struct ddp_err *err);

/* Append the addresses of this machine's interfaces, as sock_addr() writes them: all, or
 * those by which other hosts may know it: up, and not loopback. */
void sock_own_addrs(bool reachable, struct strv *out);

/* Classify `name`: an address of one of this machine's interfaces (numeric, in `text`),
 * only a loopback address (likewise), another machine's, or not resolved in time. */
enum sock_own { SOCK_OWN, SOCK_LOOPBACK, SOCK_FOREIGN, SOCK_UNKNOWN };
enum sock_own sock_own_addr(const char *name, int64_t deadline_ms, char *text,
                            size_t size);

#endif
