/* launcher/script/request.h - what a batch job asks for, checked against its site
 *
 * From what the user said and what the site has: nodes, ranks, CPUs, memory, time. What
 * the scheduler would refuse, or leave waiting for ever, is refused here, with one line
 * that says what the site allows and what to write instead.
 */
#ifndef LAUNCHER_SCRIPT_REQUEST_H
#define LAUNCHER_SCRIPT_REQUEST_H

#include "launcher/opts.h"
#include "launcher/script/site.h"

/* All borrowed from the options and the site, but `name`. */
struct request {
    const struct site *site;
    const struct partition *partition; /* NULL: the site tells nothing of it */
    const char *partition_name;        /* NULL: the scheduler's default */
    const char *account;               /* NULL: none */
    char *name;                        /* of the job, fit for every scheduler; owned */
    int nodes, gpus, ranks_per_node;   /* gpus: of each node */
    int ranks;                         /* in all: fewer than nodes x ranks_per_node where
                                          --np says so */
    int cpus_per_rank;                 /* 0: not known */
    int cpus_per_node;                 /* to ask for; 0: not known */
    int64_t memory_mb;                 /* of a node; 0: not said; -1: all of it */
    bool memory_said;                  /* by the user */
    int64_t time_s, warning_s;         /* the latter before the end of the former */
};

int request_make(const struct opts *opts, const struct site *site, struct request *r,
                 struct ddp_err *err);
void request_finish(struct request *r);

#endif
