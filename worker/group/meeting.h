/* worker/group/meeting.h - where the ranks of a group hand out their cards
 *
 *   env://             the store at MASTER_ADDR:MASTER_PORT, one fence of it
 *   tcp://host:port    rank 0 listens there for as long as it takes
 *   file:///path       a file that all hosts see, held by locks
 *   launcher://        where the launcher around us says, or its job's number
 *   (a group)          messages of the group that a new one is made from (subgroup.c)
 *
 * Wherever it is: everybody gives a card (meet.h) and gets the cards of all.
 */
#ifndef WORKER_GROUP_MEETING_H
#define WORKER_GROUP_MEETING_H

#include "worker/group/meet.h"

struct meeting {
    const char *place;       /* behind the scheme */
    const char *name;        /* of the group; the how-manieth of its name is part of it */
    const char *master_addr; /* env:// */
    int master_port;
    int rank, size;
    int64_t deadline_ms;
    char made[300]; /* place, where MASTER_ADDR and MASTER_PORT tell it */
};

/* The card (of `size` bytes, text) in, everybody's out: `cards` has room for m->size, and
 * what is in it is malloc'ed, with a NUL behind. */
typedef int (*meeting_fn)(const struct meeting *m, const char *card,
                          struct ddp_value *cards, struct ddp_err *err);

int meeting_store(const struct meeting *m, const char *card, struct ddp_value *cards,
                  struct ddp_err *err);
int meeting_tcp(const struct meeting *m, const char *card, struct ddp_value *cards,
                struct ddp_err *err);
int meeting_file(const struct meeting *m, const char *card, struct ddp_value *cards,
                 struct ddp_err *err);

int meeting_launcher(const struct meeting *m, const char *card, struct ddp_value *cards,
                     struct ddp_err *err);

/* tcp://, when rank 0 listens already and the others know where. */
int meeting_tcp_host(const struct meeting *m, int listener, const char *card,
                     struct ddp_value *cards, struct ddp_err *err);
int meeting_tcp_visit(const struct meeting *m, const char *addr, int port,
                      const char *card, struct ddp_value *cards, struct ddp_err *err);

/* By the scheme of `url` (NULL: env:// where MASTER_ADDR is known, else launcher://);
 * fills m->place, and in `toward` an address that the others can be expected to be
 * reached by, or NULL: borrowed from `url`'s copy in `host`. */
meeting_fn meeting_find(struct meeting *m, const char *url, char host[256],
                        const char **toward, struct ddp_err *err);

/* "host:port" or "[address]:port" */
int meeting_parse_place(const char *place, char host[256], int *port,
                        struct ddp_err *err);

/* A card as one of the values. */
void meeting_keep(struct ddp_value *value, const char *card, size_t size);

#endif
