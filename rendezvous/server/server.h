/* rendezvous/server/server.h - the store on a socket, in anybody's event loop
 *
 * ddpstored runs one, and so does the agent of the job's first node. One listening port
 * serves every TCPStore dialect (told apart by the first bytes, doc/tcpstore.md). Nothing
 * is allocated on a client's word before the limits are checked, and a client that is not
 * served is closed at once.
 */
#ifndef RENDEZVOUS_SERVER_SERVER_H
#define RENDEZVOUS_SERVER_SERVER_H

#include "common/loop.h"
#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct server;
struct server_ticket; /* a connection that waits to be admitted */

/* Called once for each new connection. `peer` and `local` are the two ends as accept()
 * gave them (an IPv4 client of a dual-stack listener is v4-mapped). The answer is given
 * now or later through server_admit(); a connection without an answer is closed after
 * `ask_timeout_ms`. */
typedef void (*server_ask_fn)(struct server_ticket *ticket, const struct sockaddr *peer,
                              const struct sockaddr *local, void *arg);

/* How a client speaks that does not begin with the magic of PyTorch >= 2.2. */
enum server_dialect {
    SERVER_AUTO, /* as up to 2.0, until it uses a number that only 2.1 had */
    SERVER_D0,   /* PyTorch up to 2.0 */
    SERVER_D2,   /* PyTorch 2.1 */
    SERVER_D3,   /* it is closed */
};

/* Everything but the listening place may be left 0. */
struct server_options {
    const char *addr;       /* NULL: every interface */
    int port;               /* 0: any */
    int listen_fd;          /* > 0: a socket that listens already, taken over; else 0 */
    size_t max_connections; /* 0: as many as descriptors allow */
    server_ask_fn ask;      /* NULL: everybody is admitted, to scope 0 */
    void *ask_arg;
    int64_t ask_timeout_ms;  /* 0: 10 s */
    bool local_only;         /* where the kernel allows it, only this machine connects */
    /* Both may be NULL. A client was closed, in one line: "10.0.0.7:4711: closed: ...";
     * a connection was refused: as often as somebody tries. */
    void (*notice)(const char *line, void *arg);
    void (*refused)(const struct sockaddr *peer, const char *why, void *arg);
    void *notice_arg;
    enum server_dialect dialect;
    /* Judged as announced, before anything is allocated: bytes of a key (8 KiB) and of a
     * value (8 MiB), keys in one request (131072). */
    size_t max_key, max_value, max_list;
    /* Bytes of keys, values and what is waited for, all scopes together; as many again of
     * requests that are not complete yet (8 GiB). */
    size_t max_memory;
};

struct server *server_create(struct loop *loop, const struct server_options *options,
                             struct ddp_err *err);
/* Closes every connection at once. */
void server_destroy(struct server *s);

/* No new connections; those that stand are served until they leave or `grace_ms` have
 * passed, then closed. `done` is called once, with the number that had to be closed; the
 * server may be destroyed from within. */
void server_drain(struct server *s, int64_t grace_ms,
                  void (*done)(size_t closed, void *arg), void *arg);

int server_port(const struct server *s);

/* The answer to it. Each scope is a key space of its own: give every attempt of a
 * job another one. The ticket is gone afterwards; server_destroy() ends open ones. */
void server_admit(struct server_ticket *ticket, bool admitted, unsigned scope,
                  const char *why_not);

/* Forget every key of a scope; its waiters are closed. */
void server_drop_scope(struct server *s, unsigned scope);

struct server_stats {
    uint64_t accepted, refused, requests;
    size_t connections, keys, waiters;
    size_t bytes; /* of max_memory */
};
struct server_stats server_stats(const struct server *s);

#endif
