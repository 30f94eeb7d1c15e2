/* worker/nn/description.h - a model as text, a line for each layer (doc/models.md) */
#ifndef WORKER_NN_DESCRIPTION_H
#define WORKER_NN_DESCRIPTION_H

#include "worker/nn/model.h"

/* The model that `text` describes. `where` is for errors: "net.model". NULL with an error
 * that begins with the place, "net.model:7: ". */
struct model_type *description_read(const char *name, const char *where, const char *text,
                                    struct ddp_err *err);

#endif
