/* worker/ddp/kept.h - memory of this host that outlives its ranks: DDPRUN_KEPT_MEMORY
 *
 * A sparse file in memory (doc/contract.md), divided into cells of a fixed size, of
 * which only written pages take memory. A cell holds one rank's part of a set
 * (peers.h). Each rank writes its own cells, and sets `whole` last, so that an
 * unfinished part of a killed rank is not used.
 */
#ifndef WORKER_DDP_KEPT_H
#define WORKER_DDP_KEPT_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    KEPT_HALVES = 2,    /* one is written while the previous set is whole in the other */
    KEPT_COLUMNS = 256, /* a rank's own part, and those of KEPT_COLUMNS - 1 others */
    KEPT_HEAD = 64      /* bytes before a part */
};

struct kept_cell {
    char *at; /* owned, mapped; NULL: not yet. KEPT_HEAD bytes, then the part */
    size_t bytes;
};

bool kept_is_offered(void); /* else the job does not restart */
/* The descriptor of this host's file, or -1; and a number that identifies the host. */
int kept_open(uint64_t *host, struct ddp_err *err);

/* Allocates a cell for a part of `bytes`, with all its pages. `local` is the rank's
 * number on its host. */
int kept_map(int fd, int local, int column, int half, size_t bytes, struct kept_cell *out,
             struct ddp_err *err);
void kept_unmap(struct kept_cell *c);
void kept_set_whole(const struct kept_cell *c, bool whole);

/* The next whole part from `*at` on, which is 0 at first: its first n bytes, and its
 * place. false: there are no more. */
bool kept_next(int fd, uint64_t *at, void *head, size_t n, int *half);
/* Reads [0, bytes) of the part at that place. */
bool kept_read(int fd, uint64_t at, void *out, size_t bytes);
/* Frees the cells that no rank of this attempt writes: those of local ranks congruent
 * to `local` modulo `nlocal`, except the first `columns` of `local`. */
void kept_trim(int fd, int local, int nlocal, int columns);

#endif
