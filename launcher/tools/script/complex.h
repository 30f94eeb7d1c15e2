/* launcher/tools/script/complex.h - the amount of GPUs that a request to Grid Engine
 * names
 *
 * `-l gpu=N` means N GPUs per slot, per job or per host: sge_complex(5), column
 * "consumable" of `qconf -sc`. The site file says which.
 */
#ifndef LAUNCHER_TOOLS_SCRIPT_COMPLEX_H
#define LAUNCHER_TOOLS_SCRIPT_COMPLEX_H

#include "launcher/tools/script/request.h"

/* The N for `r->gpus` GPUs on each node. `asked` is the request's text, in which the
 * number of slots stands behind "-pe NAME" (without one a job has one slot). Returns -1
 * with an error when no N asks for exactly these GPUs. */
int complex_amount(const struct request *r, const char *asked, int *amount,
                   struct ddp_err *err);

#endif
