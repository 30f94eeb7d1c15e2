/* launcher/link/bootstrap.h - the lines that tell an agent its key, node and launcher,
 * and the connection made by them
 *
 *     ddprun-agent 1            the protocol
 *     key HEX                   the node's key; with nodes lines the job's
 *     node N                    its node number
 *     name NAME                 its name in the allocation
 *     nodes N HOSTS             instead of both: these hosts are nodes N, N+1, ...
 *     log LEVELS                optional
 *     call ADDRESS PORT         where to call back; several, in order of preference
 *     tree WIDTH                with nodes lines: agents connect in a tree of these nodes
 *     parent PORT HEX NAME      ... and without: the node to connect to first, its key
 *     listen PORT               ... and that others connect to this one
 *     detached yes              ignore EOF on stdin
 *     stdio yes                 stdin and stdout reach the launcher: they may be the link
 *     end
 *
 * Given on stdin or in a file, not in arguments or environment, which others could read.
 * After the last line stdin stays open: EOF means that the agent's starter has ended,
 * unless "detached" is set. If one process starts all agents with the same lines, these
 * assign node numbers to hosts, and each agent finds its own by its host name.
 *
 * The tree spares the launcher a connection per node. In the row of the nodes, the first
 * `width` connect to the launcher, and the one at p to the one at p / width - 1. Ports
 * are derived from the job's key, as the parent's is unknown before it listens: the
 * parent takes the first free one of BOOTSTRAP_PORTS from there on. The link between
 * them has a key of its own, derived from that of the parent. A node that does not reach
 * its parent calls the launcher.
 */
#ifndef LAUNCHER_LINK_BOOTSTRAP_H
#define LAUNCHER_LINK_BOOTSTRAP_H

#include "common/secret.h"
#include "common/strv.h"
#include "launcher/link/handshake.h"
#include "launcher/link/link.h"

#include <stdbool.h>
#include <stdint.h>

enum { BOOTSTRAP_PORTS = 4 };

struct bootstrap {
    struct secret key; /* the node's; with `nodes`, or from a meeting file, the job's */
    unsigned node;
    char *name, *log_level; /* owned; log_level may be NULL; so may name, with `nodes` */
    struct strv calls;      /* "ADDRESS PORT" */
    struct bootstrap_node {
        unsigned node;
        char *name; /* owned */
    } * nodes;      /* owned: node assignments; the row of the tree */
    size_t nnodes;
    bool detached, stdio;
    bool missing;   /* no lines have come, or not the last one */
    unsigned width; /* of the tree; 0: every node calls the launcher */
    int listen;     /* the first port for nodes below; 0: there are none */
    struct bootstrap_parent {
        char *name; /* owned; NULL: the launcher */
        int port;
        struct secret key; /* of the link to it */
    } parent;
};

/* Set `listen` and `parent` of the node at `place` in a row of `n` nodes. */
void bootstrap_set_tree(struct bootstrap *s, const struct secret *job, unsigned width,
                        const struct bootstrap_node *row, size_t n, size_t place);
/* Of its parent in the row; -1: the launcher. */
long bootstrap_parent_place(unsigned width, size_t place);

void bootstrap_add_node(struct bootstrap *s, unsigned node, const char *name);
/* Do both names mean the same host? One of them may lack the domain. */
bool bootstrap_is_host(const char *name, const char *own);
/* Take the node assigned to the host `name`, with or without its domain. Returns whether
 * there is one; without assignments `s` is for this host. */
bool bootstrap_take_node(struct bootstrap *s, const char *name);

char *
bootstrap_write(const struct bootstrap *s); /* the text; the caller wipes and frees */
int bootstrap_parse(const char *text, struct bootstrap *s, struct ddp_err *err);
/* Read the lines from `fd`, not a byte more, until `deadline_ms`. -1: see s->missing. */
int bootstrap_read(int fd, int64_t deadline_ms, struct bootstrap *s, struct ddp_err *err);
void bootstrap_finish(struct bootstrap *s);

/* --- connecting: blocking, as an agent without a link has nothing else to do -------- */

/* Connect to one of s->calls until `deadline_ms`, as sock_connect() does. */
int bootstrap_call(const char *addrs, int64_t deadline_ms, struct ddp_err *err);
/* Authenticate to the launcher at the other end of `in` and `out` (non-blocking): read
 * its offer and send the answer; then read the proof, which gives the keys of the link.
 * `key` is that of the node, or of the link to its parent.
 * The caller wipes `h`. -1 with errno: ETIMEDOUT; ECONNRESET: it has closed; EPROTO. */
int bootstrap_answer(const struct secret *key, unsigned node, int in, int out,
                     int64_t deadline_ms, struct handshake *h, struct ddp_err *err);
int bootstrap_confirm(struct handshake *h, int in, int64_t deadline_ms,
                      struct link_keys *keys, struct ddp_err *err);

/* All of it, once for each of s->calls until one succeeds: the connected socket and the
 * keys of the link, or -1 with the errno of the last attempt (ECONNRESET: the other end
 * has closed the connection, as it does if the keys differ). Takes at most `*left_ms`,
 * from which it subtracts the time in which this process ran. */
int bootstrap_connect(const struct bootstrap *s, int64_t *left_ms, struct link_keys *keys,
                      struct ddp_err *err);
/* The node that is this one's parent in the tree of agents: it may start later, so this
 * tries until the deadline. -1: call the launcher instead. */
int bootstrap_connect_parent(const struct bootstrap *s, int64_t deadline_ms,
                             struct link_keys *keys, struct ddp_err *err);

#endif
