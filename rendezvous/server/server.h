/* rendezvous/server/server.h - the store's TCP server, in the caller's event loop
 *
 * ddpstored runs one, and so does the agent of the job's first node; for Horovod's
 * elastic mode the launcher does. One listening port serves every TCPStore dialect and
 * Horovod's HTTP (detected from the first bytes, doc/tcpstore.md). Limits are checked
 * before anything is allocated for a request, and a client that cannot be served is
 * closed at once.
 */
#ifndef RENDEZVOUS_SERVER_SERVER_H
#define RENDEZVOUS_SERVER_SERVER_H

#include "common/loop.h"
#include "include/ddprun/err.h"
#include "rendezvous/protocol/dialect.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct server;
struct server_ticket; /* a connection that waits to be admitted */

/* Called once for each new connection. `peer` and `local` are its two ends as accept()
 * gave them (an IPv4 client of a dual-stack listener is v4-mapped). Answer now or later
 * through server_admit(); a connection without an answer is closed after
 * `ask_timeout_ms`. */
typedef void (*server_ask_fn)(struct server_ticket *ticket, const struct sockaddr *peer,
                              const struct sockaddr *local, void *arg);

/* All fields but the listening address may be 0. */
struct server_options {
    const char *addr; /* NULL: every interface */
    int port;         /* 0: any */
    int listen_fd;    /* > 0: a listening socket, taken over; -1: none, as all connections
                       * come by server_adopt(); else 0 */
    size_t max_connections; /* 0: limited by descriptors only */
    server_ask_fn ask;      /* NULL: all are admitted, to scope 0 */
    void *ask_arg;
    int64_t ask_timeout_ms; /* 0: 10 s */
    bool local_only; /* accept only this machine's connections, if the kernel can */
    /* Both may be NULL. `notice`: a client was closed, in one line: "10.0.0.7:4711:
     * closed: ...". `refused`: a connection was refused; not rate-limited. */
    void (*notice)(const char *line, void *arg);
    void (*refused)(const struct sockaddr *peer, const char *why, void *arg);
    void *notice_arg;
    /* Horovod's elastic mode; NULL: its keys are as all others. `value` NULL: a rank
     * waits for its place in the next world, which server_set() gives it, or has
     * published its address there, or has connected to all (protocol/http.h); else a rank
     * has set its address. `key` and `value` are not terminated. */
    void (*asked)(const char *key, size_t nkey, const char *value, size_t nvalue,
                  void *arg);
    void *asked_arg;
    enum dialect_rule dialect;
    /* Checked on the announced sizes, before anything is allocated: bytes of a key (8
     * KiB) and of a value (8 MiB), keys in one request (131072). */
    size_t max_key, max_value, max_list;
    /* Bytes of keys, values and waiters, all scopes together; the same limit again for
     * incomplete requests (8 GiB). */
    size_t max_memory;
};

struct server *server_create(struct loop *loop, const struct server_options *options,
                             struct ddp_err *err);
/* Closes every connection at once. */
void server_destroy(struct server *s);

/* Accept no new connections; serve existing ones until they disconnect or `grace_ms` have
 * passed, then close them. Calls `done` once, with the number that had to be closed; it
 * may destroy the server. */
void server_drain(struct server *s, int64_t grace_ms,
                  void (*done)(size_t closed, void *arg), void *arg);

int server_port(const struct server *s);

/* Answer a ticket, which is freed. Each scope is a key space of its own: give every
 * attempt of a job a new one. server_destroy() frees open tickets. */
void server_admit(struct server_ticket *ticket, bool admitted, unsigned scope,
                  const char *why_not);

/* Serve a connected socket, which is taken over; it needs no admission. */
void server_adopt(struct server *s, int fd, unsigned scope);

/* Delete all keys of a scope and close its waiters. */
void server_drop_scope(struct server *s, unsigned scope);

/* Set a key of a scope, as a client does. */
int server_set(struct server *s, unsigned scope, const char *key, const char *value,
               struct ddp_err *err);
/* Delete what Horovod's ranks have published in the last world. */
void server_end_world(struct server *s, unsigned scope);

struct server_stats {
    uint64_t accepted, refused, requests;
    size_t connections, keys, waiters;
    size_t bytes; /* counted against max_memory */
};
struct server_stats server_stats(const struct server *s);

#endif
