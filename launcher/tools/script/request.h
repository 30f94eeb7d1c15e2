/* launcher/tools/script/request.h - what a batch job asks for, checked against its site
 *
 * Nodes, ranks, CPUs, memory and time, from the options and the site. What the scheduler
 * would refuse or never start is refused here, with one line that says what the site
 * allows and what to write instead.
 */
#ifndef LAUNCHER_TOOLS_SCRIPT_REQUEST_H
#define LAUNCHER_TOOLS_SCRIPT_REQUEST_H

#include "launcher/opts.h"
#include "launcher/tools/script/site.h"

/* All borrowed from the options and the site, but `name`. */
struct request {
    const struct site *site;
    const struct partition *partition; /* NULL: not in the site file */
    const char *partition_name;        /* NULL: the scheduler's default */
    const char *account;               /* NULL: none */
    char *name;                        /* of the job, fit for every scheduler; owned */
    int nodes, gpus, ranks_per_node;   /* nodes: with ranks; gpus: of each node */
    int least;         /* nodes of --nnodes MIN:MAX that are enough; else `nodes` */
    int hosts;         /* nodes and --spares: to ask for */
    int ranks;         /* in all; fewer than nodes x ranks_per_node if
                          --np says so */
    int cpus_per_rank; /* 0: not known */
    int cpus_per_node; /* to ask for; 0: not known */
    int64_t memory_mb; /* of a node; 0: not given; -1: all of it */
    bool memory_said;  /* given by the user */
    int64_t time_s, warning_s; /* SIGTERM is sent warning_s before time_s */
};

int request_make(const struct opts *opts, const struct site *site, struct request *r,
                 struct ddp_err *err);
void request_finish(struct request *r);

#endif
