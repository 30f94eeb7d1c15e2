/* worker/config.h - what a user can ask ddp-train for
 *
 * Strings are borrowed from argv. Immutable once parsed.
 */
#ifndef WORKER_CONFIG_H
#define WORKER_CONFIG_H

#include "include/ddprun/err.h"
#include "worker/data/normalise.h"
#include "worker/engine.h"
#include "worker/report/progress.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

/* Exit codes; beside them 128 + signal. */
enum {
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_REQUEUE = 75,     /* EX_TEMPFAIL: stopped, with a checkpoint to go on from */
    EXIT_BELOW_TARGET = 93 /* no other attempt would reach it (doc/contract.md) */
};

/* epochs of a run that --steps alone ends */
enum { EPOCHS_UNLIMITED = INT_MAX };

enum { CONFIG_ROWS = 64 }; /* at least as many as the table of options has */

struct train_config {
    struct model_type *model; /* owned */
    const char *data;         /* NULL: none, only a prompt */
    int epochs;
    uint64_t steps; /* at most; 0: as many as the epochs have */
    const struct optim_type *optim;
    struct optim_settings optim_settings;
    bool decay_matrices; /* and nothing else */
    double lr;
    struct schedule schedule;
    struct engine_options how;  /* augment: without its key */
    struct normalise normalise; /* of pixels; no channels: as the data say */
    double target;              /* percent; NaN: none */
    uint64_t seed;

    const char *checkpoint; /* file or folder; NULL: none */
    int test_every;         /* steps; 0: each epoch */
    int checkpoint_every;   /* steps; 0: each epoch */
    int peer_steps;         /* --peer-checkpoint: what a lost host may cost; 0: no */
    const char *resume;     /* file or folder; NULL: start anew */
    bool resume_if_there;   /* the bare --resume: start anew where there is nothing */
    const char *init;       /* weights to start with; NULL: random ones */

    const char *log, *plot, *logits; /* files; NULL: none */
    int sample;                      /* tokens to be written at the end */
    const char *prompt;              /* before them; NULL: the test part's first */
    enum progress_mode progress;

    const char *engine;            /* NULL: a GPU's where all ranks have one */
    const char *kernels;           /* of the CPU; NULL: the fastest */
    bool shard_optimizer;          /* a rank remembers and updates its part only */
    const char *trace;             /* file; NULL: none */
    int64_t group_timeout_ms;      /* of a call on the group */
    size_t shard_checkpoint_bytes; /* larger ones are written by all ranks */
    const char *backend;           /* of the process group; NULL: let it choose */
    size_t bucket_bytes;           /* unless it is given, buckets are planned by time */
    bool overlap, check_replicas;
    const char *given[CONFIG_ROWS]; /* the options' texts; NULL: not given */
};

/* -1 with one line for what is wrong. --help, --usage and --version end the process. */
int config_parse(int argc, char **argv, struct train_config *out, struct ddp_err *err);

/* An option as it was given, or what it is else, NULL: nothing. The option exists. */
bool config_given(const struct train_config *c, const char *option);
const char *config_text(const struct train_config *c, const char *option);

/* The i-th of the options that must be the same on all ranks, as they are compared: of
 * files, which each rank may name in its own way, whether they are given; of a model's
 * file its last component. False: there are no more. Borrowed. */
bool config_shared(const struct train_config *c, size_t i, const char **name,
                   const char **text);

void config_finish(struct train_config *c);

/* The number of ranks on this host, from the launcher's variables. */
int config_ranks_here(void);

#endif
