/* worker/group/layout.h - which rank is on which host, and how it is reached
 *
 * Each rank publishes a card: its host, where it listens, and a token that a client must
 * show. The bootstrap (bootstrap.h) gives every rank all cards; the layout is made of
 * them.
 *
 * Two ranks are on one host when they can share memory: same boot of the same kernel,
 * same network namespace (the shared segment is passed through an abstract unix
 * socket), same host name and user. DDP_HOST_ID in the environment separates what would
 * be taken for one host, e.g. machines cloned from one snapshot.
 */
#ifndef WORKER_GROUP_LAYOUT_H
#define WORKER_GROUP_LAYOUT_H

#include "include/ddprun/group.h"

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/un.h>

enum { TOKEN_BYTES = 16 };

/* Compares in constant time. */
static inline bool token_same(const unsigned char *a, const unsigned char *b)
{
    unsigned differ = 0;
    for (size_t i = 0; i < TOKEN_BYTES; i++)
        differ |= a[i] ^ b[i];
    return !differ;
}

enum { HOST_NAME_BYTES = 68 };

/* What a rank publishes. */
struct card {
    char magic[8];
    uint64_t host; /* a hash of what the ranks of a host have in common, and no other */
    uint64_t members; /* of a group made from another: a hash of their list */
    char host_name[HOST_NAME_BYTES], addr[48];
    int32_t port; /* at `addr` */
    unsigned char token[TOKEN_BYTES];
};

/* The listening sockets of this rank, for other hosts and for this one, made by
 * listeners_open(). The owner takes a descriptor out by setting it to -1. */
struct listeners {
    int tcp_fd, unix_fd;
};

struct member {
    int host, local; /* index of its host, and its own among the ranks of that host */
    union {
        struct sockaddr sa;
        struct sockaddr_in four;
        struct sockaddr_in6 six;
    } addr; /* where it listens */
    unsigned char token[TOKEN_BYTES];
};

/* Hosts are numbered by their lowest rank; ranks of a host are in rank order. */
struct layout {
    int rank, size;
    struct member *members; /* owned, by rank */
    int nhosts;
    int *by_host;    /* owned: the ranks, host by host */
    int *host_start; /* owned: where each host begins in by_host, and the last ends */
    char (*host_names)[HOST_NAME_BYTES]; /* owned: as in the cards */
    int *world_ranks; /* owned: the ranks' numbers in the first group of the family; NULL
                         where they are the same */
};

/* Listen; the card gets the port and a new token. To be closed also after a failure, when
 * the port is 0: other ranks then refuse the card. */
int listeners_open(struct listeners *listeners, struct card *card, struct ddp_err *err);
void listeners_close(struct listeners *listeners); /* those that are still open */
/* Where the rank with this token listens for those of its host: an abstract address,
 * whose name nobody can guess who does not know the token. Returns its length. */
socklen_t listener_address(const unsigned char *token, struct sockaddr_un *sa);

/* The card of this rank, but for where it listens. `toward` is an address that the others
 * are reached by, or NULL; its name is resolved until `deadline_ms`. `alone`: treat no
 * other rank as on this host. */
int card_make(struct card *card, int rank, const char *toward, int64_t deadline_ms,
              bool alone, struct ddp_err *err);
/* Make the layout from all cards, by rank. It keeps about 60 bytes of each card, since
 * every rank keeps all. */
int layout_from_cards(struct layout *layout, int rank, int size, const struct card *cards,
                      struct ddp_err *err);
/* A layout of one rank, without a store. */
void layout_single(struct layout *layout);
void layout_finish(struct layout *layout);

/* The ranks of host h, in order, and how many they are. */
const int *layout_host(const struct layout *layout, int h, int *n);

/* Is the rank on this rank's host? */
static inline bool layout_is_here(const struct layout *l, int rank)
{
    return l->members[rank].host == l->members[l->rank].host;
}

/* Its number in the first group of the family, or what is no rank as it is. */
static inline int layout_world(const struct layout *l, int rank)
{
    return l->world_ranks && rank >= 0 && rank < l->size ? l->world_ranks[rank] : rank;
}

/* A part of a message, by value: a returned one lives until the end of the full
 * expression. */
struct phrase {
    char text[128];
};
/* "rank 3 on node02"; in a group made from another "rank 3 (7 in all) on node02" */
struct phrase layout_who(const struct layout *layout, int rank);
/* Sets `err` to that and `what` it has done; returns -1. */
int layout_blame(const struct layout *layout, int rank, const char *what,
                 struct ddp_err *err);

#endif
