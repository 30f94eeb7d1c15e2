/* launcher/agent/connect.c - see connect.h */
#include "launcher/agent/connect.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/link/handshake.h"
#include "launcher/transport/transport_proc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* limit for one address, so that the others are tried, too */
enum { TRY_MS = 4000, PARENT_TRY_MS = 1000 };

/* `key`: of the link; NULL: the node's. */
static int prove(int in, int out, const struct bootstrap *s, const struct secret *of_link,
                 int64_t deadline_ms, struct link_keys *keys, struct ddp_err *err)
{
    unsigned char offer[HANDSHAKE_OFFER], answer[HANDSHAKE_ANSWER],
        proof[HANDSHAKE_PROOF];
    struct handshake h;
    struct secret key = of_link ? *of_link : s->key;
    int rc = 0;
    if (sock_read_all(in, offer, sizeof offer, deadline_ms) < 0)
        return err_errno(err, "no handshake received");
    if (s->of_job && !of_link)
        handshake_node_key(&s->key, s->node, &key);
    if (handshake_answer(&h, &key, s->node, offer, answer, err) < 0)
        rc = -1;
    else if (sock_write_all(out, answer, sizeof answer, deadline_ms) < 0 ||
             sock_read_all(in, proof, sizeof proof, deadline_ms) < 0)
        rc = err_errno(err, "the handshake was not completed");
    else
        rc = handshake_confirm(&h, proof, keys, err);
    secret_wipe(&h, sizeof h);
    secret_wipe(&key, sizeof key);
    return rc;
}

/* "ADDRESS PORT" */
static int connect_one(const struct bootstrap *s, const char *addrs, int64_t deadline_ms,
                       struct link_keys *keys, struct ddp_err *err)
{
    char addr[256];
    int port;
    if (sscanf(addrs, "%255s %d", addr, &port) != 2)
        return err_set(err, "'%s' is no address and port", addrs);
    int64_t until = now_ms() + TRY_MS < deadline_ms ? now_ms() + TRY_MS : deadline_ms;
    int fd = sock_connect(addr, port, until, false, err);
    if (fd < 0)
        return -1;
    if (prove(fd, fd, s, NULL, until, keys, err) < 0) {
        close(fd);
        return err_prefix(err, "'%s' port %d", addr, port);
    }
    return fd;
}

int connect_launcher(const struct bootstrap *s, const char *from, int64_t deadline_ms,
                     struct link_keys *keys, struct ddp_err *err)
{
    struct strv addrs = {0};
    char addr[64], port[16];
    if (from && sscanf(from, "%63s", addr) == 1 &&
        sscanf(s->calls.v[0], "%*s %15s", port) == 1)
        strv_pushf(&addrs, "%s %s", addr, port);
    for (size_t i = 0; i < s->calls.n; i++) {
        if (addrs.n == 0 || strcmp(addrs.v[0], s->calls.v[i]) != 0)
            strv_push(&addrs, s->calls.v[i]);
    }
    int fd = -1;
    for (size_t i = 0; i < addrs.n && fd < 0; i++) {
        struct ddp_err why;
        fd = connect_one(s, addrs.v[i], deadline_ms, keys, &why);
        if (i == 0 && fd < 0)
            *err = why; /* of the likeliest address */
    }
    strv_finish(&addrs);
    return fd < 0 ? err_prefix(err, "cannot call back") : fd;
}

/* Another program may listen on a port: each gets PARENT_TRY_MS. */
static int try_parent(const struct bootstrap *s, int64_t deadline_ms,
                      struct link_keys *keys, struct ddp_err *err)
{
    const struct bootstrap_parent *p = &s->parent;
    int fd = -1;
    for (int i = 0; i < BOOTSTRAP_PORTS && fd < 0 && now_ms() < deadline_ms; i++) {
        int64_t until = now_ms() + PARENT_TRY_MS;
        until = until < deadline_ms ? until : deadline_ms;
        fd = sock_connect(p->name, p->port + i, until, false, err);
        if (fd < 0 && errno == ENXIO)
            break; /* no such name: nothing changes that */
        if (fd >= 0 && prove(fd, fd, s, &p->key, until, keys, err) < 0) {
            close(fd);
            fd = -1;
            errno = EPROTO;
        }
    }
    return fd;
}

int connect_parent(const struct bootstrap *s, int64_t deadline_ms, struct link_keys *keys,
                   struct ddp_err *err)
{
    int64_t pause_ms = 10;
    int fd;
    while ((fd = try_parent(s, deadline_ms, keys, err)) < 0) {
        if (errno == ENXIO || now_ms() + pause_ms >= deadline_ms)
            break;
        nanosleep(&(struct timespec){.tv_nsec = pause_ms * 1000000}, NULL);
        pause_ms = pause_ms < 125 ? 2 * pause_ms : 250;
    }
    return fd;
}

int connect_by_stdio(const struct bootstrap *s, struct link_keys *keys)
{
    static const char line[] = TRANSPORT_PROC_LINK;
    int64_t until = now_ms() + TRY_MS;
    struct ddp_err err;
    sock_set_nonblock(STDIN_FILENO, true);
    sock_set_nonblock(STDOUT_FILENO, true);
    if (sock_write_all(STDOUT_FILENO, line, sizeof line - 1, until) < 0)
        return -1;
    return prove(STDIN_FILENO, STDOUT_FILENO, s, NULL, until, keys, &err);
}
