/* bench/scale/sim.h - the simulated cluster, and its first node if that is a real one */
#ifndef BENCH_SCALE_SIM_H
#define BENCH_SCALE_SIM_H

#include "bench/scale/sample.h"

#include "common/loop.h"
#include "launcher/link/bootstrap.h"
#include "launcher/link/handshake.h"
#include "launcher/link/merge.h"
#include "launcher/link/message.h"

#include <netinet/in.h>
#include <stdio.h>

enum phase { START, LAUNCH, BARRIER, EXCHANGE, QUIET, JOIN, END, PHASES };
struct node {
    struct sim *sim; /* borrowed: the owner */
    unsigned number;
    int fd;              /* owned until there is a link */
    struct event *ready; /* owned, until there is a link */
    struct handshake shake;
    unsigned char bytes[HANDSHAKE_OFFER];
    size_t have, want;   /* of `bytes` */
    struct link *up;     /* owned; NULL: closed, or not at the top of the tree */
    struct node *top;    /* borrowed: whose link it uses, itself for a node at the top */
    struct merge *merge; /* owned; NULL: not at the top, or no nodes below */
    size_t below;
    struct msg_share share;
};

struct sim {
    struct loop *loop;
    struct bootstrap boot;
    char host[64]; /* of the launcher */
    int port;
    pid_t launcher;
    struct node *nodes; /* owned, by number */
    unsigned n, done;   /* nodes */
    unsigned links;     /* nodes at the top of the tree; they are the first */
    unsigned connecting, next;
    enum phase phase;
    unsigned seconds, nbytes, nline;
    uint8_t line[PIECE_MAX];
    struct event *timer;
    struct traffic {
        uint64_t frames, bytes;
    } up[PHASES][MSG_TYPES], down[PHASES][MSG_TYPES];
    struct sample closed, samples[PHASES + 1]; /* the first: before anything */
    int64_t first_ns;                          /* a node got its ranks */
    int64_t done_ns;                           /* the end of this phase */
    FILE *report;
    pid_t agent, load;   /* the real agent's guard, or 0; the clients of its store */
    struct event *ended; /* owned: of `load` */
    char *master;        /* owned: the store's address */
    unsigned master_port, credit; /* of the job */
};

_Noreturn void give_up(const char *why);
struct in_addr node_address(unsigned number);

/* All nodes are through with the phase; what was sent meanwhile may still arrive. */
void phase_end(struct sim *s);

/* Give the first node to a real agent, here; then go to the network namespace `netns`,
 * where the others are. */
void real_agent_start(struct sim *s, const char *netns);

/* Start the ranks of the simulated nodes as clients of the real store. Their end is that
 * of the phase. */
void real_clients_start(struct sim *s);

#endif
