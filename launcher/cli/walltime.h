/* launcher/cli/walltime.h - how long a job may run, and how much memory it may
 * have: from people's words to the scheduler's
 *
 * A bare number is minutes for Slurm, LSF and Flux, seconds for Grid Engine and PBS;
 * "2:00" is two minutes for some and two hours for others. Both are rejected: times need
 * a unit.
 */
#ifndef LAUNCHER_CLI_WALLTIME_H
#define LAUNCHER_CLI_WALLTIME_H

#include "include/ddprun/err.h"
#include "launcher/opts.h"

#include <stddef.h>
#include <stdint.h>

/* What duration_parse() takes, but for a bare number, to whole seconds: at least one and
 * at most ten years. */
int walltime_parse(const char *text, int64_t *seconds, struct ddp_err *err);

/* As the scheduler's script has it: Slurm [D-]HH:MM:SS, Grid Engine and PBS HH:MM:SS, LSF
 * HH:MM (minutes rounded up), Flux seconds with their unit, "7200s". The caller frees. */
char *walltime_text(enum scheduler scheduler, int64_t seconds);

/* As --time takes it back: "2h", "5d", "1d12h". */
void walltime_say(int64_t seconds, char *out, size_t size);

/* What size_parse() takes, but for a bare number, to MiB: Slurm's is MiB, others' are
 * bytes. */
int memory_parse(const char *text, int64_t *mb, struct ddp_err *err);

#endif
