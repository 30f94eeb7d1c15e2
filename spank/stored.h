/* spank/stored.h - the store of a step: a ddpstored beside the step's tasks
 *
 * A child of slurmstepd on the node of rank 0, as the user; made before the tasks are,
 * and ended with the step. Should slurmstepd be killed, the kernel ends it.
 */
#ifndef SPANK_STORED_H
#define SPANK_STORED_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>

/* `hosts` may connect, as ddpstored's --allow names them; NULL: everybody. Returns when
 * the port is open, or -1 with what ddpstored said. */
int stored_start(char *program, int port, char *hosts, struct ddp_err *err);
/* What it has said since: lines in `text`. Does not wait; false: nothing. */
bool stored_said(char *text, size_t size);
void stored_stop(void);

#endif
