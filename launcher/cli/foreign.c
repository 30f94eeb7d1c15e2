/* launcher/cli/foreign.c - see foreign.h */
#include "launcher/cli/foreign.h"

#include "common/err.h"
#include "common/mem.h"
#include "launcher/cli/spelling.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct foreign table[] = {
    /* Open MPI's mpirun */
    {"mca omca gmca", 2, FOREIGN_VARIABLE, "OMPI_MCA_", NULL},
    {"pmixmca pmca", 2, FOREIGN_VARIABLE, "PMIX_MCA_", NULL},
    {"prtemca", 2, FOREIGN_IGNORED, NULL, NULL},
    {"allow-run-as-root noprefix no-oversubscribe nooversubscribe q quiet", 0,
     FOREIGN_IGNORED, NULL, NULL},
    {"report-bindings display-map display-allocation display-topo", 0, FOREIGN_IGNORED,
     NULL, NULL},
    {"display personality", 1, FOREIGN_IGNORED, NULL, NULL},
    {"do-not-launch", 0, FOREIGN_OURS, "dry-run", NULL},
    {"pernode", 0, FOREIGN_OURS, "nproc-per-node", "1"},
    {"bynode", 0, FOREIGN_OURS, "map-by", "node"},
    {"byslot", 0, FOREIGN_OURS, "map-by", "slot"},
    {"bind-to-core", 0, FOREIGN_OURS, "bind-to", "core"},
    {"bind-to-socket", 0, FOREIGN_OURS, "bind-to", "socket"},
    {"bind-to-none", 0, FOREIGN_OURS, "bind-to", "none"},
    {"prefix", 1, FOREIGN_REFUSED, "--agent names ddprun-agent on the other hosts", NULL},
    {"rankfile rf", 1, FOREIGN_REFUSED,
     "list the hosts in that order, with slots, and use --map-by", NULL},
    {"app configfile", 1, FOREIGN_REFUSED,
     "all ranks run one program, which can choose by RANK", NULL},
    {"output", 1, FOREIGN_REFUSED, "use --tag-output or --output-filename", NULL},
    {"nolocal skip-launch-node", 0, FOREIGN_REFUSED,
     "use -H ^HOST, or leave this host out of the hostfile", NULL},
    {"use-hwthread-cpus", 0, FOREIGN_REFUSED, "use --bind-to hwthread", NULL},
    {"cpu-set cpu-list", 1, FOREIGN_REFUSED, "run ddprun under taskset", NULL},
    {"tune am", 1, FOREIGN_REFUSED, "use -x OMPI_MCA_NAME=VALUE", NULL},
    /* mpiexec of MPICH and Intel MPI */
    {"env genv", 2, FOREIGN_VARIABLE, "", NULL},
    {"envall genvall disable-hostname-propagation print-all-exitcodes", 0,
     FOREIGN_IGNORED, NULL, NULL},
    {"envlist genvlist rmk topolib demux usize", 1, FOREIGN_IGNORED, NULL, NULL},
    {"prepend-rank l", 0, FOREIGN_OURS, "tag-output", "on"},
    {"perhost", 1, FOREIGN_OURS, "nproc-per-node", NULL},
    {"bootstrap", 1, FOREIGN_OURS, "start", NULL},
    {"bootstrap-exec launcher-exec", 1, FOREIGN_OURS, "ssh", NULL},
    {"envnone genvnone", 0, FOREIGN_REFUSED, "run 'env -i ddprun ...'", NULL},
    {"info", 0, FOREIGN_REFUSED, "use --version", NULL},
    {"order-nodes", 1, FOREIGN_REFUSED, "list the hosts in that order", NULL},
    {"binding", 1, FOREIGN_REFUSED, "use --bind-to", NULL},
    {"prepend-pattern", 1, FOREIGN_REFUSED, "use --tag-output", NULL},
    {"outfile-pattern errfile-pattern", 1, FOREIGN_REFUSED, "use --output-filename",
     NULL},
    {"disable-auto-cleanup", 0, FOREIGN_REFUSED, "a failed rank always ends the job",
     NULL},
    /* torchrun */
    {"standalone", 0, FOREIGN_IGNORED, NULL, NULL},
    {"rdzv-backend rdzv-id rdzv-conf monitor-interval start-method role tee t "
     "signals-to-handle event-log-handler",
     1, FOREIGN_IGNORED, NULL, NULL},
    {"log-dir", 1, FOREIGN_OURS, "output-filename", NULL},
    {"redirects r", 1, FOREIGN_REFUSED, "use --output-filename, and --output-from", NULL},
    {"local-addr", 1, FOREIGN_REFUSED, "use --interface NAME or --master-addr ADDRESS",
     NULL},
    {"local-ranks-filter duplicate-stdout-filters duplicate-stderr-filters", 1,
     FOREIGN_REFUSED, "use --output-from RANKS", NULL},
    {"numa-binding", 1, FOREIGN_REFUSED, "use --bind-to numa", NULL},
    {"run-path", 0, FOREIGN_REFUSED, "leave it out", NULL},
    {"logs-specs", 1, FOREIGN_REFUSED, "use --output-filename", NULL},
    /* horovodrun */
    {"num-proc", 1, FOREIGN_OURS, "np", NULL},
    {"network-interfaces", 1, FOREIGN_OURS, "interface", NULL},
    {"prefix-output-with-timestamp", 0, FOREIGN_OURS, "timestamp-output", NULL},
    {"gloo disable-cache tcp", 0, FOREIGN_IGNORED, NULL, NULL},
    {"cycle-time-ms", 1, FOREIGN_VARIABLE, "HOROVOD_CYCLE_TIME", NULL},
    {"cache-capacity", 1, FOREIGN_VARIABLE, "HOROVOD_CACHE_CAPACITY", NULL},
    {"timeline-filename", 1, FOREIGN_VARIABLE, "HOROVOD_TIMELINE", NULL},
    {"timeline-mark-cycles", 0, FOREIGN_VARIABLE, "HOROVOD_TIMELINE_MARK_CYCLES", NULL},
    {"autotune", 0, FOREIGN_VARIABLE, "HOROVOD_AUTOTUNE", NULL},
    {"autotune-log-file", 1, FOREIGN_VARIABLE, "HOROVOD_AUTOTUNE_LOG", NULL},
    {"hierarchical-allreduce", 0, FOREIGN_VARIABLE, "HOROVOD_HIERARCHICAL_ALLREDUCE",
     NULL},
    {"hierarchical-allgather", 0, FOREIGN_VARIABLE, "HOROVOD_HIERARCHICAL_ALLGATHER",
     NULL},
    {"no-stall-check", 0, FOREIGN_VARIABLE, "HOROVOD_STALL_CHECK_DISABLE", NULL},
    {"num-nccl-streams", 1, FOREIGN_VARIABLE, "HOROVOD_NUM_NCCL_STREAMS", NULL},
    {"gloo-timeout-seconds", 1, FOREIGN_VARIABLE, "HOROVOD_GLOO_TIMEOUT_SECONDS", NULL},
    {"mpi-threads-disable", 0, FOREIGN_VARIABLE, "HOROVOD_MPI_THREADS_DISABLE", NULL},
    {"fusion-threshold-mb", 1, FOREIGN_REFUSED, "use -x HOROVOD_FUSION_THRESHOLD=BYTES",
     NULL},
    {"p ssh-port", 1, FOREIGN_REFUSED,
     "use --ssh 'ssh -p PORT', or port=PORT in a hostfile", NULL},
    {"i ssh-identity-file", 1, FOREIGN_REFUSED, "use --ssh 'ssh -i FILE'", NULL},
    {"min-np max-np min-num-proc max-num-proc host-discovery-script slots-per-host slots "
     "elastic-timeout reset-limit",
     1, FOREIGN_REFUSED, "use -np: the number of ranks is fixed", NULL},
    {"mpi-args binding-args config-file", 1, FOREIGN_REFUSED, "leave it out", NULL},
    {"jsrun", 0, FOREIGN_REFUSED, "leave it out", NULL},
};

const struct foreign *foreign_find(const char *word)
{
    const char *name = word + strspn(word, "-");
    for (size_t i = 0; i < ARRAY_LEN(table); i++) {
        if (spelling_is(table[i].names, name, strcspn(name, "=")))
            return &table[i];
    }
    return NULL;
}

char *foreign_variable(const struct foreign *f, const char *const *values)
{
    if (f->values == 2)
        return xasprintf("%s%s%s%s", f->text, values[0], values[1] ? "=" : "",
                         values[1] ? values[1] : "");
    return xasprintf("%s=%s", f->text, f->values == 1 ? values[0] : "1");
}

void foreign_complain(const struct foreign *f, const char *word, struct strv *refused)
{
    strv_pushf(refused, "'%.*s': %s", (int)strcspn(word, "="), word, f->text);
}

int foreign_refuse(const struct strv *refused, struct ddp_err *err)
{
    struct ddp_err all = {"unknown here: "};
    size_t n = strlen(all.text);
    for (size_t i = 0; i < refused->n && n < sizeof all.text; i++)
        n += (size_t)snprintf(all.text + n, sizeof all.text - n, "%s%s", i ? "; " : "",
                              refused->v[i]);
    return err_set(err, "%.480s (try ddprun --help)", all.text);
}
