/* spank/facts.h - what a task of a Slurm step is in the world of its step
 *
 * From the variables that Slurm sets for each task (srun(1), "OUTPUT ENVIRONMENT
 * VARIABLES") to the facts of which launcher/contract.h makes a rank's environment. Pure:
 * an environment goes in, numbers come out.
 */
#ifndef SPANK_FACTS_H
#define SPANK_FACTS_H

#include "include/ddprun/err.h"
#include "launcher/contract.h"

#include <stdint.h>

/* Ports that nothing else is given: above the registered services that matter, below the
 * range from which Linux and Slurm take ports for others (32768 on). */
enum { PORT_FIRST = 20000, PORT_COUNT = 12000 };

/* A value of the environment `env`, NULL when it is not set or empty. */
const char *env_value(char *const *env, const char *name);

/* The same port on every node without a word between them. */
int step_port(uint32_t job, uint32_t step);

/* The nodes of the step, as Slurm writes a list; borrowed. NULL: not known. */
const char *step_hosts(char *const *env);

/* The node of rank 0, in lower case and malloc'ed: the first of the step's, or the first
 * in the user's own order (-m arbitrary). NULL with `err`. */
char *step_master(char *const *env, struct ddp_err *err);

/* Everything but hostname, master_addr, job_id and ncpus, which are the caller's. */
int step_facts(char *const *env, struct rank_facts *facts, struct ddp_err *err);

#endif
