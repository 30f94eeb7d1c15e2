/* worker/ddp/shard.h - an optimiser that is sharded over the ranks
 *
 * Each rank has the states of its pieces of the parameters (reducer_pieces()) and
 * updates only these; then the weights are gathered. With n ranks the optimiser takes
 * an n-th of the memory and of the time. (Rajbhandari et al., "ZeRO", SC 2020, stage
 * 1.)
 *
 * Where ranks share memory a rank does all of it in one pass over its pieces, block by
 * block: the sum of all gradients, the update, and the copy of the new weights to all
 * ranks.
 *
 * Where the optimiser is not sharded (reducer_shares()), each rank has whole states
 * and updates everything.
 */
#ifndef WORKER_DDP_SHARD_H
#define WORKER_DDP_SHARD_H

#include "worker/ddp/reducer.h"
#include "worker/optim/optim.h"

/* Keeps this rank's pieces of whole states, and frees the rest; nothing if it has. */
void shard_keep(struct optim *o, const struct reducer *r);

/* One of this rank's pieces: its weights in the whole block, and its optimiser states.
 * The pieces of all ranks partition the model. */
struct rank_piece {
    struct bucket at;
    const float *states[OPTIM_STATES]; /* NULL: not used */
};

/* Piece i of this rank; false: there is none. */
bool shard_piece(const struct optim *o, const struct reducer *r, size_t i,
                 struct rank_piece *out);

/* Gathers the whole states in o->whole, on every rank; shard_forget() frees them. */
int shard_gather(struct optim *o, struct reducer *r, struct ddp_err *err);
void shard_forget(struct optim *o);

/* The parameters of an update with the sums of all gradients times `by`. */
struct step_rule {
    float lr, by;
    double clip_norm; /* largest norm; 0: no clipping */
    bool check;       /* compute the norm also without clipping */
};

/* Updates this rank's pieces; then all ranks get all weights. *norm is that of the
 * gradients if `how` requires it, else 0; if it is not finite, nothing was updated. */
int shard_step(struct optim *o, struct reducer *r, float *w, const struct step_rule *how,
               double *norm, struct ddp_err *err);

#endif
