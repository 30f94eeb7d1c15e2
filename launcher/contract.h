/* launcher/contract.h - the environment of a rank: one table (doc/contract.md)
 *
 * The table is the only place that knows the names. --show-env and --dry-run print from
 * it, the agent builds from it, the documentation test compares with it.
 */
#ifndef LAUNCHER_CONTRACT_H
#define LAUNCHER_CONTRACT_H

#include "common/strv.h"
#include "launcher/opts.h"

#include <stdbool.h>
#include <stdint.h>

/* What ranks are told of their PMIx server before it runs; the server is made to be like
 * that. Its store of keys is the one that leaves no files behind. */
#define CONTRACT_PMIX_SECURITY "native"
#define CONTRACT_PMIX_BUFFERS  "PMIX_BFROP_BUFFER_NON_DESC"
#define CONTRACT_PMIX_STORE    "hash"

/* What a rank's variables are computed from; filled by the agent, or by --dry-run. */
struct rank_facts {
    int rank, size;
    int local_rank, local_size;
    int node_rank, nnodes;
    int cross_rank, cross_size;
    const char *hostname;    /* the node's name in the allocation */
    const char *master_addr; /* lower case, no brackets around IPv6 */
    int master_port;
    const char *job_id; /* TORCHELASTIC_RUN_ID */
    int restart_count, max_restarts;
    int ncpus;                  /* CPUs this rank was given */
    int columns;                /* of the terminal that its lines end on; 0: none */
    const char *gpu;            /* CUDA_VISIBLE_DEVICES when narrowed, NULL: untouched */
    const char *interface;      /* GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, or NULL */
    const char *gloo_interface; /* without it: GLOO_SOCKET_IFNAME alone, or NULL */
    const char *error_file;     /* TORCHELASTIC_ERROR_FILE, or NULL: not set */
    const char *pmix_nspace;    /* the world's name in PMIx, or NULL: it is not served */
    const char *pmix_uri;       /* where its server listens */
    int pmi_fd;                 /* the rank's end of PMI-1 and PMI-2; 0: not served */
    bool crowded;               /* more ranks on this node than CPUs for them */
    unsigned rank_names;        /* enum rank_names */
    enum store_mode store;
};

/* Why a variable has the value it has. */
enum env_origin {
    ENV_SET,      /* ours */
    ENV_REPLACED, /* ours, in the place of another launcher's or an outer value */
    ENV_KEPT,     /* the user's own value, which a default of ours would have replaced */
    ENV_REMOVED   /* an outer launcher's, which would mislead a rank */
};

struct env_note {
    const char *name; /* borrowed for the time of the call */
    enum env_origin origin;
    const char *old; /* borrowed from `base`, may be NULL */
    bool user;       /* the value was given with -x: ENV_REPLACED is worth a warning */
};

/* `base` (the user's environment with -x applied) turned into the rank's. `note` (may be
 * NULL) hears of everything that did not simply pass through. The user's own values are
 * those given with -x: `user_set` lists their names. */
void contract_apply(const struct rank_facts *facts, const struct strv *base,
                    const struct strv *user_set, struct strv *env,
                    void (*note)(const struct env_note *n, void *arg), void *arg);

/* The rows of the table that have a value for these facts, for who cannot hand over a
 * whole environment (spank/). `gives_way`: a value that is there already stays. */
void contract_each(const struct rank_facts *facts,
                   void (*row)(const char *name, const char *value, bool gives_way,
                               void *arg),
                   void *arg);

/* Is the name of this "NAME=value" one that the table sets? */
bool contract_knows(const char *entry);

/* The table, a row a line: name, meaning, when. For --help and doc/contract.md. */
void contract_print(void (*line)(const char *text, void *arg), void *arg);

#endif
