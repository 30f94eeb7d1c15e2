/* worker/ddp/peers.h - the state of a run in the memory of its hosts
 *
 * Every rank copies its part of the state (its pieces of the parameters and of the
 * optimiser, the buffers, where the run stands) to memory of its host that outlives it
 * (kept.h), and sends it to a rank of the next host while training goes on. The parts of
 * all ranks at one step are a set. A set is whole while each part is on some host: so one
 * host may be lost, or several that are no neighbours, and any number of ranks.
 *
 * There is room for two sets. A rank begins another one when all have the last one whole,
 * so one of the two is whole at any time.
 */
#ifndef WORKER_DDP_PEERS_H
#define WORKER_DDP_PEERS_H

#include "include/ddprun/group.h"
#include "worker/ddp/replica.h"
#include "worker/ddp/shard.h"

struct peers;

/* Every rank; they agree on the outcome, `culprit` as in replica.h. The reducer, which
 * has this rank's pieces, is borrowed. */
struct peers *peers_create(struct ddp_group *group, const struct reducer *reducer,
                           int *culprit, struct ddp_err *err);
/* NULL is fine. Behind ddp_group_destroy() or peers_end(), which end what is under way.
 */
void peers_destroy(struct peers *p);

/* Every rank, while the optimiser's states are whole (optim_whole()). Where the memory of
 * the hosts has a newer set than `at`, which is rank 0's, rank 0 gets it, and *loaded is
 * true on all ranks. They agree on the outcome; `culprit` as in replica.h. */
int peers_load(struct peers *p, const struct replica *run, struct train_state *at,
               bool *loaded, int *culprit, struct ddp_err *err);
/* For a person, of rank 0: what came of it, or "". */
const char *peers_told(const struct peers *p);

/* Every rank, between steps: begin a set. */
int peers_save(struct peers *p, const struct replica *run, const struct train_state *at,
               struct ddp_err *err);
/* After each step: what has come is whole. */
int peers_progress(struct peers *p, struct ddp_err *err);
/* Every rank: wait until the last set is whole everywhere. */
int peers_finish(struct peers *p, struct ddp_err *err);

/* Wait for what this rank sends and receives, as far as it comes. */
void peers_end(struct peers *p);

/* What this rank keeps, and how long training stood still for it. */
struct peers_cost {
    uint64_t sets;
    size_t part, memory; /* bytes: of a part, of all that is kept */
    double stalled_s;
    int next; /* the rank that has this one's part, too; -1: none */
};
struct peers_cost peers_cost(const struct peers *p);

#endif
