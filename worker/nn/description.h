/* worker/nn/description.h - a model as text, a line for each layer (doc/models.md) */
#ifndef WORKER_NN_DESCRIPTION_H
#define WORKER_NN_DESCRIPTION_H

#include "worker/nn/model.h"

/* Parses the model that `text` describes. `where` is for errors: "net.model"; `sizes`
 * replace the text's own: "layers=4,width=64". NULL with an error that begins with the
 * line, "net.model:7: ". */
struct model_type *description_read(const char *name, const char *where, const char *text,
                                    const char *sizes, struct ddp_err *err);

#endif
