/* launcher/plugins/observe/status.h - the state of a job as one JSON object
 *
 * For the page, --metrics and --top. Lists have an element per rank: 1,024 ranks are
 * some 100 KB, written without a tree of objects.
 */
#ifndef LAUNCHER_PLUGINS_OBSERVE_STATUS_H
#define LAUNCHER_PLUGINS_OBSERVE_STATUS_H

#include "launcher/job/state.h"
#include "launcher/plugins/observe/calls.h"

#include <event2/buffer.h>

/* What agents measure, at most once a second. */
struct rank_usage {
    char state;       /* as in /proc/PID/stat; 0: not measured */
    double cpu;       /* percent of one CPU since the last sample */
    uint64_t cpu_ms;  /* since its start */
    uint64_t rss_kib; /* all three with its descendants */
    uint64_t seen_ms; /* cpu_ms of the last sample */
};

struct node_usage {
    int64_t at_ns; /* of the last sample, on its clock; 0: none */
    double cpu;    /* percent of all its CPUs */
    uint64_t used_kib, total_kib;
    struct gpu_use *gpus; /* owned */
    size_t ngpus;
};

/* The words of the command, with ":" between programs. */
void status_command(const struct job *j, struct strv *words);

/* `whole_ns`: the time in which all ranks have run. `ranks` and `nodes` have the job's
 * numbers; NULL: nothing is measured. Without `calls` (NULL) it has no collectives. Ends
 * with a newline. */
void status_write(const struct job *j, int64_t whole_ns, int64_t recover_ns,
                  const struct rank_usage *ranks, const struct node_usage *nodes,
                  struct calls *calls, struct evbuffer *out);

#endif
