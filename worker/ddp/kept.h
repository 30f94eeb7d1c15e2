/* worker/ddp/kept.h - memory of this host that outlives its ranks: DDPRUN_KEPT_MEMORY
 *
 * A sparse file in memory (doc/contract.md), cut in cells of a fixed size of which only
 * what is written takes pages. A cell holds one rank's part of a set (peers.h). Each rank
 * writes its own cells; `whole` is set last, so that what a killed rank had begun is not
 * taken for a part.
 */
#ifndef WORKER_DDP_KEPT_H
#define WORKER_DDP_KEPT_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KEPT_HALVES = 2,    /* a set is written to one while the last is whole in the other */
    KEPT_COLUMNS = 256, /* a rank's own part, and those of so many others less one */
    KEPT_HEAD = 64      /* bytes before a part */
};

struct kept_cell {
    char *at; /* owned, mapped; NULL: not yet. A KEPT_HEAD, and the part */
    size_t bytes;
};

/* The descriptor of this host's file, and the host's number, which no other has. -1. */
int kept_open(uint64_t *host, struct ddp_err *err);

/* Room for a part of `bytes`; its pages are taken now. `local` is the rank's number on
 * its host. */
int kept_map(int fd, int local, int column, int half, size_t bytes, struct kept_cell *out,
             struct ddp_err *err);
void kept_unmap(struct kept_cell *c);
void kept_set_whole(const struct kept_cell *c, bool whole);

/* The next whole part from `*at` on, 0 at first: its first n bytes, and where it is.
 * false: there is none. */
bool kept_next(int fd, uint64_t *at, void *head, size_t n, int *half);
/* [0, bytes) of the part there. */
bool kept_read(int fd, uint64_t at, void *out, size_t bytes);
/* Give back the cells that no rank of this attempt writes: those of a local rank that is
 * `local` modulo `nlocal`, but not the first `columns` of `local`. */
void kept_trim(int fd, int local, int nlocal, int columns);

#endif
