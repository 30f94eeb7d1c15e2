/* worker/group/layout.h - which rank is on which host, and how it is reached
 *
 * Each rank publishes a card: its host, where it listens, and a token that a client
 * must show. The bootstrap (bootstrap.h) gives every rank all cards; the
 * layout is made of them.
 *
 * Two ranks are on one host when they can share memory: same boot of the same kernel,
 * same network namespace (the shared segment is passed through an abstract unix
 * socket), same host name and user. DDP_HOST_ID in the environment separates what would
 * be taken for one host, e.g. machines cloned from one snapshot.
 */
#ifndef WORKER_GROUP_LAYOUT_H
#define WORKER_GROUP_LAYOUT_H

#include "include/ddprun/group.h"
#include "include/ddprun/store.h"

#include <stdbool.h>

enum { TOKEN_BYTES = 16 };

/* The listening sockets of this rank, made by listeners_open(). The owner takes a
 * descriptor out by setting it to -1. */
struct listeners {
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
    int *by_host;     /* owned: the ranks, host by host */
    int *host_start;  /* owned, nhosts + 1: where each host begins in by_host */
    char *texts;      /* owned: what members point into */
    int *world_ranks; /* owned: the ranks' numbers in the first group of the family; NULL
                         in that one */
};

int listeners_open(struct listeners *listeners, struct ddp_err *err);
void listeners_close(struct listeners *listeners); /* those that are still open */

/* The card of this rank. `toward` is an address that the others are reached by, or
 * NULL; its name is resolved until `deadline_ms`. `alone`: treat no other rank as on
 * this host. The caller frees it. */
char *card_make(int rank, const struct listeners *listeners, const char *toward,
                int64_t deadline_ms, bool alone, struct ddp_err *err);
/* The same for a known host and address. */
char *card_make_as(const char *host_id, const char *host_name, const char *addr,
                   const struct listeners *listeners);
/* Copy a card into `value`. */
void card_copy(struct ddp_value *value, const char *card, size_t size);
/* Make the layout from all cards, by rank. Takes over `values` and their contents. It
 * keeps about 60 bytes of each card, since every rank keeps all. */
int layout_from_cards(struct layout *layout, int rank, int size, struct ddp_value *values,
                      struct ddp_err *err);
/* A layout of one rank, without a store. */
void layout_single(struct layout *layout);
void layout_finish(struct layout *layout);

/* The ranks of host h, in order, and how many they are. */
const int *layout_host(const struct layout *layout, int h, int *n);

/* "rank 3 on node02"; in a group made from another "rank 3 (7 in all) on node02" */
const char *layout_who(const struct layout *layout, int rank, char *text, size_t size);

#endif
