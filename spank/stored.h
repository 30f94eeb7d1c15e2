/* spank/stored.h - the store of a step: a ddpstored beside the step's tasks
 *
 * A child of slurmstepd on the node of rank 0, run as the user; started before the tasks
 * and killed with the step. If slurmstepd is killed, the kernel kills it.
 */
#ifndef SPANK_STORED_H
#define SPANK_STORED_H

#include "include/ddprun/err.h"

#include <stdbool.h>
#include <stddef.h>

/* `port`: 0 for any free one. `hosts` may connect, in the syntax of ddpstored's --allow;
 * NULL: all. Returns the port when it is open, or -1 with ddpstored's message. */
int stored_start(char *program, int port, char *hosts, struct ddp_err *err);
/* Its output since the last call, as lines in `text`. Does not wait; false: none. */
bool stored_said(char *text, size_t size);
void stored_stop(void);

#endif
