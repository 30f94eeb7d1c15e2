/* worker/group/meet.h - the ranks of a group find out who and where the others are
 *
 * Every rank hands a card to the store: which host it is on, where it listens, and a
 * secret that whoever connects to it must show. One fence gives everybody all cards.
 *
 * Two ranks are on one host when they can share memory: same boot of the same kernel,
 * same network namespace (the shared segment is handed over through an abstract unix
 * socket), same host name and user. DDP_HOST_ID in the environment parts what would be
 * taken for one host, e.g. machines cloned from one snapshot.
 */
#ifndef WORKER_GROUP_MEET_H
#define WORKER_GROUP_MEET_H

#include "include/ddprun/group.h"
#include "include/ddprun/store.h"

#include <stdbool.h>

enum { TOKEN_BYTES = 16 };

/* What this rank brings; sockets are made by meet_open() and owned by whoever meets. */
struct meet_doors {
    int tcp_fd, tcp_port; /* listens for other hosts */
    int unix_fd;          /* listens for this host */
    char unix_name[40];   /* abstract: without the leading NUL */
    unsigned char token[TOKEN_BYTES];
};

struct member {
    int host, local; /* index of its host, and its own among the ranks of that host */
    int port;
    const char *host_name, *addr; /* borrowed from the layout */
    const char *unix_name;        /* likewise; of ranks of this host, else NULL */
    unsigned char token[TOKEN_BYTES];
};

/* Hosts are numbered by their lowest rank; ranks of a host are in rank order. */
struct layout {
    int rank, size;
    struct member *members; /* owned, by rank */
    int nhosts;
    int *by_host;    /* owned: the ranks, host by host */
    int *host_start; /* owned, nhosts + 1: where each host begins in by_host */
    char *texts;     /* owned: what members point into */
    int *outer; /* owned: the ranks' numbers in the group that this one was made from; or
                   NULL */
};

int meet_open(struct meet_doors *doors, struct ddp_err *err);
void meet_close(struct meet_doors *doors); /* those that are still open */

/* My card: `toward` is an address that the others are reached by, or NULL. `alone`: take
 * no other rank to be on my host. The caller frees it. */
char *meet_card(int rank, const struct meet_doors *doors, const char *toward, bool alone,
                struct ddp_err *err);
/* The same with what is known already: host, and address. */
char *meet_card_of(const char *host_id, const char *host_name, const char *addr,
                   const struct meet_doors *doors);
/* What the cards of all say, in the order of ranks; `values` and what is in them are
 * taken over. What is kept of a card is some 60 bytes, since every rank keeps all. */
int meet(struct layout *layout, int rank, int size, struct ddp_value *values,
         struct ddp_err *err);
/* A layout of one rank, without a store. */
void layout_single(struct layout *layout);
void layout_finish(struct layout *layout);

/* The ranks of host h, in order, and how many they are. */
const int *layout_host(const struct layout *layout, int h, int *n);

/* "rank 3 on node02"; in a group made from another "rank 3 (7 in all) on node02" */
const char *layout_who(const struct layout *layout, int rank, char *text, size_t size);

#endif
