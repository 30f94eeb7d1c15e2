/* worker/ddp/peers.h - the state of a run in the memory of its hosts
 *
 * Every rank copies its part of the state (its pieces of the parameters and of the
 * optimiser, the buffers, the progress) to memory of its host that outlives it
 * (kept.h), and sends it to a rank of the next host while training continues. The
 * parts of all ranks at one step are a set. A set is whole while each part is on some
 * host, so the run survives the loss of one host, or of several that are not
 * neighbours, and of any number of ranks.
 *
 * There is memory for two sets. A rank begins a set only when all ranks have the
 * previous one whole, so one of the two is always whole.
 */
#ifndef WORKER_DDP_PEERS_H
#define WORKER_DDP_PEERS_H

#include "include/ddprun/group.h"
#include "worker/ddp/reducer.h"
#include "worker/ddp/replica.h"

struct peers;

/* Every rank calls it; they agree on the outcome, `culprit` as in replica.h. The
 * reducer, which defines this rank's pieces, is borrowed. */
struct peers *peers_create(struct ddp_group *group, const struct reducer *reducer,
                           int *culprit, struct ddp_err *err);
/* NULL is allowed. Call it after ddp_group_destroy() or peers_end(), which end
 * transfers in flight. */
void peers_destroy(struct peers *p);

/* Every rank calls it, while the optimiser's states are whole (optim_whole()). If the
 * memory of the hosts has a newer set than rank 0's `at`, rank 0 receives it, and
 * *loaded is true on all ranks. They agree on the outcome; `culprit` as in replica.h. */
int peers_load(struct peers *p, const struct replica *run, struct train_state *at,
               bool *loaded, int *culprit, struct ddp_err *err);
/* The outcome for the user, on rank 0, or "". */
const char *peers_told(const struct peers *p);

/* Every rank, between steps: begins a set. */
int peers_save(struct peers *p, const struct replica *run, const struct train_state *at,
               struct ddp_err *err);
/* After each step: marks what has arrived as whole. */
int peers_progress(struct peers *p, struct ddp_err *err);
/* Every rank: waits until the last set is whole everywhere. */
int peers_finish(struct peers *p, struct ddp_err *err);

/* Waits for this rank's transfers, which may fail. */
void peers_end(struct peers *p);

/* What this rank keeps, and the time that training waited for it. */
struct peers_cost {
    uint64_t sets;
    size_t part, memory; /* bytes: of a part; of everything kept */
    double stalled_s;
    int next; /* the rank that keeps this one's part, too; -1: none */
};
struct peers_cost peers_cost(const struct peers *p);

#endif
