/* worker/turns.h - a model in stages: how a batch is cut, and who does what after what
 *
 * The layers are cut in stages, a batch in micro-batches. A stage takes turns between
 * forward and backward as soon as it can ("1F1B", Narayanan et al., "PipeDream", SOSP
 * 2019): with S stages, stage s has at most S - s micro-batches under way at a time, so
 * that little is kept. The last stage turns round at once.
 *
 * Both engines go by this: threads of a CPU and streams of GPUs. A turn forward needs the
 * stage before to have taken its own with the same micro-batch, a turn back the one
 * behind.
 */
#ifndef WORKER_TURNS_H
#define WORKER_TURNS_H

#include <stdbool.h>

enum { PIPELINE_STAGES = 2 };

struct turn {
    bool back;
    int micro; /* the micro-batch */
};

/* What `stage` of `stages` does at its k-th turn, of 2 n with n micro-batches. */
struct turn turn_of(int stage, int stages, int n, int k);

/* Micro-batches of a batch of n samples: `wanted`, or one for each sample. */
int turn_parts(int n, int wanted);
/* The first sample of the m-th of so many even parts. */
int turn_first(int n, int parts, int m);

#endif
