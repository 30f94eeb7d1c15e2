/* worker/ddp/shard.h - an optimiser whose memory the ranks share out
 *
 * Each rank remembers the states of its pieces of the parameters (reducer_pieces()), and
 * steps there; then the weights are gathered. With n ranks the optimiser takes an n-th of
 * the memory and of the time. (Rajbhandari et al., "ZeRO", SC 2020, stage 1.)
 *
 * Where ranks share memory a rank does all of it in one pass over its pieces, block by
 * block: the sum over all gradients, the step, and the new weights to all ranks.
 *
 * Where the optimiser is not shared out (reducer_shares()), each rank has whole states,
 * and steps everywhere.
 */
#ifndef WORKER_DDP_SHARD_H
#define WORKER_DDP_SHARD_H

#include "worker/ddp/reducer.h"
#include "worker/optim/optim.h"

/* Keep this rank's pieces of whole states, and give back the rest. */
void shard_keep(struct optim *o, const struct reducer *r);

/* A piece of what this rank looks after: weights in the whole block, and its optimiser
 * states. The pieces of all ranks are the model. */
struct rank_piece {
    struct bucket at;
    const float *states[OPTIM_STATES]; /* NULL: not used */
};

/* Piece i of this rank, where the states are those of shard_keep(), or whole where the
 * ranks share nothing out; false: there is none. */
bool shard_piece(const struct optim *o, const struct reducer *r, size_t i,
                 struct rank_piece *out);

/* Put the whole states together in o->whole, on every rank; shard_forget() frees them. */
int shard_gather(struct optim *o, struct reducer *r, struct ddp_err *err);
void shard_forget(struct optim *o);

/* How a step is taken: with the sums of all gradients times `by`. */
struct step_rule {
    float lr, by;
    double clip_norm; /* made smaller until their norm is this one; 0: as they are */
    bool check;       /* in any case: is the norm finite? */
};

/* A step of this rank's pieces; then all weights on all ranks. *norm is that of the
 * gradients, where `how` asks for it, else 0: if it is not finite no step was taken. */
int shard_step(struct optim *o, struct reducer *r, float *w, const struct step_rule *how,
               double *norm, struct ddp_err *err);

#endif
