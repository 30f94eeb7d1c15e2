/* launcher/plugins/mpi/pmi_server.h - PMI-1 and PMI-2 for the ranks of one node
 *
 * What MPICH and its derivatives expect of Hydra: rank and size, put and get of key-value
 * pairs, and a barrier that makes all puts visible everywhere. One descriptor per rank,
 * created before the rank starts; its first line selects the protocol version. Across
 * nodes, a barrier is a FENCE of the agents, with the puts since the last one as data.
 */
#ifndef LAUNCHER_PLUGINS_MPI_PMI_SERVER_H
#define LAUNCHER_PLUGINS_MPI_PMI_SERVER_H

#include "common/loop.h"
#include "launcher/link/message.h"

#include <stdbool.h>

struct agent;
struct pmi_server;

/* `a` is borrowed, with its job and share; `mapping`: PMI_process_mapping, or NULL.
 * `member` is called when a rank has entered or left MPI. */
struct pmi_server *
pmi_server_create(struct agent *a, const char *mapping,
                  void (*member)(uint32_t local, bool joined, void *arg), void *arg);
void pmi_server_destroy(struct pmi_server *s);

/* The rank's end, which the caller closes; -1: out of descriptors. */
int pmi_server_open(struct pmi_server *s, uint32_t local);

/* The rank has exited. Returns whether it was still in MPI. */
bool pmi_server_exited(struct pmi_server *s, uint32_t local);

enum { RELATED_PMI = 0x80 }; /* the first byte of a RELATED frame for PMI servers */

/* Handle the result of a FENCE or SPAWN, or a RELATED frame. */
int pmi_server_on_frame(struct pmi_server *s, const struct frame *f, struct ddp_err *err);

#endif
