/* worker/run.h - the state of one training run on this rank
 *
 * run.c sets it up and tears it down, run_state.c loads and saves it, train.c runs it,
 * run_files.c writes what is asked for at the end, summary.c reports on it. A call
 * that fails does so on every rank, with the same error; run_is_culprit() says which
 * rank prints it.
 */
#ifndef WORKER_RUN_H
#define WORKER_RUN_H

#include "include/ddprun/group.h"
#include "worker/config.h"
#include "worker/data/dataset.h"
#include "worker/data/sampler.h"
#include "worker/ddp/peers.h"
#include "worker/ddp/saver.h"
#include "worker/engine.h"
#include "worker/nn/model.h"
#include "worker/optim/optim.h"
#include "worker/report/metrics.h"
#include "worker/report/plot.h"
#include "worker/report/progress.h"
#include "worker/report/trace.h"

#include <stdbool.h>
#include <stdint.h>

enum run_end { RUN_GOING, RUN_ALL_EPOCHS, RUN_TARGET_REACHED, RUN_STOPPED };

struct run {
    const struct train_config *c; /* borrowed */

    struct ddp_group *group; /* owned */
    int rank, size;
    int culprit; /* the rank whose error it is; -1: each prints its own */

    const struct kernels *kernels;
    struct dataset data;
    int answers;         /* of a sample: its tokens, or 1 */
    struct model *model; /* owned: the host's copy */
    struct optim optim;
    struct replica replica; /* of these two, once the engine is open */
    const struct engine_type *engine_type;
    struct engine *engine;   /* owned; NULL until it is open */
    char engine_why[200];    /* why it was chosen */
    struct engine_info info; /* of `engine`, ready for the first step */
    struct sampler sampler;
    uint32_t *in_order; /* owned: 0, 1, 2, ... for walking the test set */
    uint32_t *prompt;   /* owned: tokens, for --sample */
    size_t prompt_tokens;

    struct train_state state; /* identical on every rank */
    bool resumed, resumed_whole, from_memory;
    enum run_end end;
    int stopped_by;            /* the signal of RUN_STOPPED, on whichever rank */
    struct report last;        /* epoch 0: there is none yet */
    uint64_t checksum;         /* of the parameters; 0: not compared so far */
    uint64_t skipped;          /* steps, with --on-nan skip */
    struct trace *trace;       /* owned; NULL without --trace */
    struct peers *peers;       /* owned; NULL without --peer-checkpoint */
    uint64_t kept, kept_whole; /* steps of their newest set, and of the one before */

    int64_t began_ns, train_ns;
    uint64_t images; /* trained on by this process, over all ranks */

    /* rank 0 only; elsewhere they are closed and silent */
    struct progress progress;
    struct metrics metrics;
    struct history history;
    struct saver *saver; /* owned; of every rank; NULL without --checkpoint */
    uint64_t marked;     /* the last step that run_mark() told; UINT64_MAX: not read */
    int64_t marked_ms;
};

struct run *run_create(const struct train_config *config);
void run_destroy(struct run *run);

/* Data, model, group, checkpoint: ready for the first step. */
int run_open(struct run *run, struct ddp_err *err);
/* All of the training; in train.c. */
int run_train(struct run *run, struct ddp_err *err);
/* The plot, the end of the log, the summary. */
int run_finish(struct run *run, struct ddp_err *err);
/* In run_files.c: checks, before training, that the files can be written, and that none
 * takes the place of another or of the data. */
int run_check_files(const struct train_config *c, struct ddp_err *err);
/* In run_files.c: writes the files at the end of a run, and prints the result. The error
 * is the first; what follows is written all the same. */
int run_write_files(struct run *run, struct ddp_err *err);

/* In run_state.c. Loads the newest state, from disk or from the hosts' memory, on all
 * ranks and their engines; if there is none, rank 0's. */
int run_resume(struct run *run, struct ddp_err *err);
/* Start writing a checkpoint if one was asked for; training continues meanwhile. A
 * failure is reported by the next call, or at the end. */
int run_save(struct run *run, struct ddp_err *err);
/* Begins a set of --peer-checkpoint; call it after drain(). */
int run_keep(struct run *run, struct ddp_err *err);
/* Where the launcher may restart the job, tell it how far an attempt would go on from. */
void run_mark(struct run *run);
/* And from which step this one goes on; when it has failed, which it has done: by rank 0
 * and the last rank, of which one is left. */
void run_mark_begin(struct run *run);
void run_mark_end(struct run *run);

/* replica_agree_late(), and one rank says on stderr which are late. */
int run_agree_late(struct run *run, int rc, int *culprit, struct ddp_err *err);
bool run_is_culprit(const struct run *run);
/* Wait until the culprit has exited: launchers report the rank that ends first, which
 * should be the one with the error. */
void run_wait_for_culprit(struct run *run);
int run_exit_code(const struct run *run);
/* in train.c: are all steps taken that the options ask for? */
bool run_has_ended(const struct run *run);
/* Has a job been resumed after an epoch, with which it may have reached its target? */
bool run_may_be_done(const struct run *run);
/* Percent of the devices' peak at this rate; NaN: unknown. */
double run_peak_percent(const struct run *run, double images_per_s);

/* In config_agreement.c: compares options that must be the same on all ranks, which would
 * deadlock or train wrongly, and what follows from them. -1 on every rank with the same
 * text, which names the first difference, the lowest rank that has it, and both values.
 */
int run_check_agreement(const struct run *run, struct ddp_err *err);

/* in sample.c: what the model goes on with, for --sample; generates text */
int run_read_prompt(struct run *run, struct ddp_err *err);
void run_sample(struct run *run);

/* Prints a line: the label, padded to 12 columns, then the text. */
#define run_tell(run, label, format, ...) \
    progress_say(&(run)->progress, "%-12s" format, label, ##__VA_ARGS__)

/* in summary.c: the table at the start, and the summary at the end */
void run_tell_config(struct run *run);
void run_tell_result(struct run *run, const char *plot);

#endif
