/* launcher/agent/pmi_server.h - PMI-1 and PMI-2 for the ranks of one node
 *
 * What MPICH and its kin ask of Hydra: who am I of how many, put and get small texts, and
 * a barrier behind which all that was put can be got everywhere. One descriptor per rank,
 * made before it starts; the dialect is told by the first line on it. Over several nodes
 * a barrier is a FENCE of the agents that carries what was put since the last one.
 */
#ifndef LAUNCHER_AGENT_PMI_SERVER_H
#define LAUNCHER_AGENT_PMI_SERVER_H

#include "common/loop.h"
#include "launcher/link/message.h"

#include <stdbool.h>

struct pmi_server;

struct pmi_events {
    void (*send)(enum msg_type type, const struct pack *head, const void *data,
                 size_t size, void *arg);
    /* a rank is in MPI, or has left it */
    void (*member)(uint32_t local, bool joined, void *arg);
    /* a rank ends the job: the code and what it has done */
    void (*abort)(uint32_t rank, int code, const char *text, void *arg);
};

/* `job` and `share` are borrowed. */
struct pmi_server *pmi_server_create(struct loop *loop, const struct msg_job *job,
                                     const struct msg_share *share,
                                     const struct pmi_events *events, void *arg);
void pmi_server_destroy(struct pmi_server *s);

/* The rank's end, borrowed until pmi_server_started(); -1: no descriptor is to be had. */
int pmi_server_open(struct pmi_server *s, uint32_t local);
void pmi_server_started(struct pmi_server *s, uint32_t local);

/* Its process has ended. Had it joined, and not left? */
bool pmi_server_exited(struct pmi_server *s, uint32_t local);

/* A FENCE of ours comes back. */
int pmi_server_hear(struct pmi_server *s, const struct frame *f, struct ddp_err *err);

#endif
