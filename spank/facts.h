/* spank/facts.h - the rank, sizes and addresses of a task in its Slurm step
 *
 * From the variables that Slurm sets for each task (srun(1), "OUTPUT ENVIRONMENT
 * VARIABLES") to the facts from which launcher/contract.h makes a rank's environment.
 * Pure functions of an environment.
 */
#ifndef SPANK_FACTS_H
#define SPANK_FACTS_H

#include "include/ddprun/err.h"
#include "launcher/contract.h"

#include <stdint.h>

/* Above the registered ports in common use, below the range from which Linux and Slurm
 * assign ports (32768 on). */
enum { PORT_FIRST = 20000, PORT_COUNT = 12000 };

/* A value of `env`; NULL when unset or empty. */
const char *env_value(char *const *env, const char *name);

/* A port that every node computes equally, without communication. */
int step_port(uint32_t job, uint32_t step);

/* The nodes of the step, as Slurm writes a list; borrowed. NULL: not known. */
const char *step_hosts(char *const *env);

/* The node of rank 0, in lower case and malloc'ed: the step's first node, or the first in
 * the user's order (-m arbitrary). NULL with `err`. */
char *step_master(char *const *env, struct ddp_err *err);

/* Fills all but hostname, master_addr, job_id and ncpus, which the caller sets. */
int step_facts(char *const *env, struct rank_facts *facts, struct ddp_err *err);

#endif
