/* launcher/contract.h - the environment of a rank: one table (doc/contract.md)
 *
 * Only the table has the names. --show-env and --dry-run print it, the agent builds each
 * rank's environment from it, a test compares the documentation with it.
 */
#ifndef LAUNCHER_CONTRACT_H
#define LAUNCHER_CONTRACT_H

#include "common/strv.h"
#include "launcher/opts.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* PMIx settings that ranks get before their server runs; the server is started with the
 * same. The "hash" store leaves no files behind. */
#define CONTRACT_PMIX_SECURITY "native"
#define CONTRACT_PMIX_BUFFERS  "PMIX_BFROP_BUFFER_NON_DESC"
#define CONTRACT_PMIX_STORE    "hash"

/* Input of the table; filled by the agent, or by --dry-run. */
struct rank_facts {
    int rank, size;
    int local_rank, local_size;
    int node_rank, nnodes;
    bool grows; /* hosts may be added while it runs */
    int cross_rank, cross_size;
    const char *hostname;    /* the node's name in the allocation */
    const char *master_addr; /* lower case, no brackets around IPv6 */
    int master_port;
    int rank0_port;     /* on its host, reserved for rank 0; 0: none, -1: not known yet */
    const char *job_id; /* TORCHELASTIC_RUN_ID */
    int restart_count, max_restarts;
    int ncpus;   /* CPUs this rank was given */
    int columns; /* terminal columns for its output, without the tag; 0: no terminal */
    const char *gpu; /* CUDA_VISIBLE_DEVICES with --virtual-local-rank; NULL: unchanged */
    const char *interface;      /* GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, or NULL */
    const char *gloo_interface; /* without it: GLOO_SOCKET_IFNAME only, or NULL */
    const char *error_file;     /* TORCHELASTIC_ERROR_FILE, or NULL: not set */
    const char *kept_memory;    /* DDPRUN_KEPT_MEMORY, or NULL: not set */
    const char *nccl_ras;       /* NCCL_RAS_ADDR, or NULL: not set */
    const char *pmix_nspace;    /* the job's PMIx namespace, or NULL: no PMIx */
    const char *pmix_uri;       /* where its server listens */
    int pmi_fd;                 /* the rank's end of PMI-1 and PMI-2; 0: no PMI */
    bool spawned;               /* by a rank of another job */
    bool crowded;               /* more ranks on this node than CPUs for them */
    unsigned rank_names;        /* enum rank_names */
    const char *node_list;      /* hosts of the job, "n1,n2", or NULL */
    const char *tasks_per_node; /* "4,4", or NULL */
    const char *tf_config;      /* JSON, or NULL */
    const char *endpoints;      /* of all ranks, "n1:20001,n2:20001", or NULL */
    int tracker_port;           /* DMLC_TRACKER_PORT */
    enum store_mode store;
    int store_port; /* of ddprun's store, if MASTER_PORT is left to the one rank; 0:
                     * there; -1: not known yet */
    int kv_port;    /* of Horovod's key-value server, on this host; 0: it is the store */
};

/* Why a variable has the value it has. */
enum env_origin {
    ENV_SET,      /* ours */
    ENV_REPLACED, /* ours, instead of a value from the environment or -x */
    ENV_KEPT,     /* the user's value, instead of our default */
    ENV_REMOVED   /* another launcher's, which would mislead a rank */
};

struct env_note {
    const char *name; /* borrowed during the call */
    enum env_origin origin;
    const char *old; /* borrowed from `base`, may be NULL */
    bool user;       /* `old` was given with -x: ENV_REPLACED needs a warning */
};

/* What a rank's environment is made from: the user's with -x applied, looked up in the
 * tables once for all ranks. */
struct contract_base {
    const struct strv *vars; /* borrowed */
    struct contract_var *is; /* owned: of each */
    size_t nbytes;           /* of all */
};
/* `user_set` (may be NULL) has the names given with -x. */
void contract_base_init(struct contract_base *b, const struct strv *vars,
                        const struct strv *user_set);
void contract_base_finish(struct contract_base *b);

/* Build the rank's environment `env`, which is empty. `note` (may be NULL) is called for
 * every variable that was not just copied. */
void contract_apply(const struct rank_facts *facts, const struct contract_base *base,
                    struct strv *env, void (*note)(const struct env_note *n, void *arg),
                    void *arg);

/* The rows of the table that have a value for these facts, for a caller that sets
 * variables one by one (spank/). `is_default`: only if it is not set yet. */
void contract_each(const struct rank_facts *facts,
                   void (*row)(const char *name, const char *value, bool is_default,
                               void *arg),
                   void *arg);

/* Is the name of `entry` ("NAME=value") in the table? */
bool contract_knows(const char *entry);

/* The table, one row per line: name, meaning, when. For --help and doc/contract.md. */
void contract_print(FILE *out);

#endif
