/* worker/group/reduce.h - element by element: sum, product, max, min, average, bits
 *
 * As include/ddprun/group.h says. The bits depend on the order of the operands alone,
 * never on where the data lie: reduce_many() folds from the left, and rounds f16 and bf16
 * at the end.
 */
#ifndef WORKER_GROUP_REDUCE_H
#define WORKER_GROUP_REDUCE_H

#include "include/ddprun/group.h"

#include <stdbool.h>

size_t type_size(enum ddp_type type);
const char *type_name(enum ddp_type type);
const char *op_name(enum ddp_op op);
bool reduce_known(enum ddp_type type, enum ddp_op op); /* are they in the tables? */
/* False for DDP_BAND, DDP_BOR and DDP_BXOR of floats. Both are known. */
bool reduce_sensible(enum ddp_type type, enum ddp_op op);

/* out = a op b, without the division of DDP_AVG. out may be a or b. */
void reduce_two(void *out, const void *a, const void *b, size_t count, enum ddp_type type,
                enum ddp_op op);

/* The division of DDP_AVG; nothing for the other operations. */
void reduce_finish(void *data, size_t count, enum ddp_type type, enum ddp_op op,
                   int ranks);

/* Every out[j] = in[0] op in[1] op ..., then the division by `ranks` (0: not now).
 * An out may be one of the ins; otherwise they do not overlap. */
void reduce_many(void *const *out, int nout, const void *const *in, int nin, size_t count,
                 enum ddp_type type, enum ddp_op op, int ranks);

#endif
