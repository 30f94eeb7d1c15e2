/* worker/run.h - one training run as this rank has it: everything, in one place
 *
 * run.c puts it together and takes it apart, train.c makes it go, summary.c tells about
 * it. A call that fails does so on every rank, with the same error; run_blames_us() says
 * which of them shows it.
 */
#ifndef WORKER_RUN_H
#define WORKER_RUN_H

#include "include/ddprun/group.h"
#include "worker/checkpoint.h"
#include "worker/config.h"
#include "worker/data/dataset.h"
#include "worker/data/sampler.h"
#include "worker/engine.h"
#include "worker/nn/model.h"
#include "worker/optim/optim.h"
#include "worker/report/history.h"
#include "worker/report/metrics.h"
#include "worker/report/progress.h"
#include "worker/report/trace.h"
#include "worker/saver.h"

#include <stdbool.h>
#include <stdint.h>

enum run_end { RUN_GOING, RUN_ALL_EPOCHS, RUN_TARGET_REACHED, RUN_STOPPED };

struct run {
    const struct train_config *c; /* borrowed */

    struct ddp_group *group; /* owned */
    int rank, size;
    int culprit; /* whose error it is: a rank, -1: everybody sees it for himself */

    const struct kernels *kernels;
    struct dataset data;
    struct model *model; /* owned: the host's copy */
    struct optim optim;
    const struct engine_type *engine_type;
    struct engine *engine; /* owned; NULL until it is open */
    char engine_why[200];  /* it was chosen */
    struct engine_device device;
    struct sampler sampler;
    uint32_t *in_order; /* owned: 0, 1, 2, ... for walking the test set */

    struct train_state state; /* the same on every rank */
    bool resumed, resumed_whole;
    enum run_end end;
    int stopped_by;           /* the signal of RUN_STOPPED, at whichever rank */
    struct epoch_report last; /* epoch 0: there is none yet */
    uint64_t checksum;        /* of the parameters, with --check-replicas */
    uint64_t skipped;         /* steps, with --on-nan skip */
    struct trace *trace;      /* owned; NULL without --trace */

    int64_t began_ns, train_ns;
    uint64_t images; /* trained on in this process's life, over all ranks */

    /* rank 0 only; elsewhere they are closed and silent */
    struct progress progress;
    struct metrics metrics;
    struct history history;
    struct saver *saver; /* owned; of every rank; NULL without --checkpoint */
};

struct run *run_create(const struct train_config *config);
void run_destroy(struct run *run);

/* Data, model, group, checkpoint: ready for the first step. */
int run_open(struct run *run, struct ddp_err *err);
/* All of the training; in train.c. */
int run_train(struct run *run, struct ddp_err *err);
/* The picture, the log's end, the last words. */
int run_finish(struct run *run, struct ddp_err *err);

/* Begin to write a checkpoint if one was asked for; training may go on meanwhile. Whether
 * it could be written shows at the next one, or at the end. */
int run_save(struct run *run, struct ddp_err *err);

bool run_blames_us(const struct run *run);
/* Wait until the rank that run_blames_us() has ended: what a launcher tells of is the
 * rank that ended first, so let it be the one with the words. */
void run_let_go_first(struct run *run);
int run_exit_code(const struct run *run);
/* What the ranks' devices do at that rate, of what they could; NaN: nobody knows. */
double run_peak_percent(const struct run *run, double images_per_s);

/* in summary.c: the table at the start, and the words at the end */
void run_tell_config(struct run *run);
void run_tell_result(struct run *run, const char *plot);

#endif
