/* worker/peers.h - the state of a run in the memory of its hosts: --peer-checkpoint
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
#ifndef WORKER_PEERS_H
#define WORKER_PEERS_H

#include "include/ddprun/group.h"
#include "worker/checkpoint.h"
#include "worker/engine.h"

struct peers;

/* Every rank; the caller agrees on the outcome. */
struct peers *peers_create(struct ddp_group *group, struct ddp_err *err);
/* NULL is fine. Behind ddp_group_destroy(), which ends what is under way. */
void peers_destroy(struct peers *p);

/* What a part is taken from, or filled into: borrowed. */
struct peers_run {
    struct train_state *state;
    struct model *model;
    struct optim *optim;
    const struct engine_type *type;
    const struct engine *engine;
};

/* Every rank, before the engine's push(). Where the memory of the hosts has a newer set
 * than `state`, which is rank 0's, rank 0 gets it, and *loaded is true on all ranks. */
int peers_load(struct peers *p, const struct peers_run *run, bool *loaded,
               struct ddp_err *err);
/* For a person, of rank 0: what came of it, or "". */
const char *peers_told(const struct peers *p);

/* Every rank, between steps: begin a set. */
int peers_save(struct peers *p, const struct peers_run *run, struct ddp_err *err);
/* After each step: what has come is whole. */
int peers_progress(struct peers *p, struct ddp_err *err);
/* Every rank: wait until the last set is whole everywhere. */
int peers_finish(struct peers *p, struct ddp_err *err);

/* What this rank keeps, and how long training stood still for it. */
struct peers_cost {
    uint64_t sets;
    size_t part, memory; /* bytes: of a part, of all that is kept */
    double stalled_s;
    int next; /* the rank that has this one's part, too; -1: none */
};
struct peers_cost peers_cost(const struct peers *p);

#endif
