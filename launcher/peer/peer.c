/* launcher/peer/peer.c - see peer.h */
#define LOG_SUBSYS "peers"
#include "launcher/peer/peer.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/pmi_client.h"
#include "launcher/alloc/sched.h"
#include "launcher/peer/gather.h"
#include "launcher/peer/join.h"
#include "launcher/peer/late.h"
#include "launcher/peer/local_copies.h"
#include "launcher/transport/program.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed(const struct ddp_err *err, int code)
{
    if (err->text[0])
        fprintf(stderr, "ddprun: %s\n", err->text);
    return code;
}

/* This node's slots from its scheduler; each node has its own. */
static void own_slots(struct msg_join *n)
{
    static const struct {
        const char *name;
        bool list; /* of devices: all that Slurm 20.11 gives */
    } vars[] = {
        {"SLURM_GPUS_ON_NODE", false}, {"SLURM_STEP_GPUS", true}, {"SM_NUM_GPUS", false}};
    for (size_t i = 0; i < ARRAY_LEN(vars); i++) {
        const char *text = sched_env(vars[i].name);
        int gpus = !text          ? 0
                   : vars[i].list ? sched_devices(text)
                                  : sched_gpus(vars[i].name, text, NULL);
        if (gpus <= 0)
            continue;
        n->slots = (uint32_t)gpus;
        n->slots_from = xasprintf("%s=%.100s", vars[i].name, text);
        return;
    }
}

static void describe(const struct opts *opts, const struct ambient_job *o,
                     struct msg_join *n)
{
    char name[HOST_NAME_MAX + 1] = "";
    gethostname(name, sizeof name - 1);
    *n = (struct msg_join){.copies = (uint32_t)o->local_size,
                           .np = (uint32_t)opts->np,
                           .per_node = (uint32_t)opts_per_node(opts),
                           .host = xstrdup(name[0] ? name : "localhost")};
    own_slots(n);
}

/* The head's address if known without its meeting file, else NULL. */
static const char *head_address(const struct opts *opts, const struct ambient_job *o)
{
    if (opts->master_addr)
        return opts->master_addr;
    return o->hosts.n > 0 ? o->hosts.v[0] : NULL;
}

static int lead(struct opts *opts, const struct ambient_job *o,
                const struct msg_join *own, const struct local_copies *copies,
                struct peers *peers)
{
    struct ddp_err err = {""};
    SCOPED(peer_key_finish) struct peer_key k = {0};
    const char *head = head_address(opts, o);
    int rc = 0;
    if (o->local_size < o->size)
        rc = peer_key_find(opts, o, head != NULL, &k, &err);
    if (rc == 0 && o->rank > 0 && !k.meeting_file && !head)
        rc = err_set(&err, "give --master-addr, rank 0's host, on all nodes");
    unsetenv("DDPRUN_KEY"); /* not for the ranks */
    if (rc < 0)
        return failed(&err, EXIT_CANNOT_START);
    if (k.open && o->rank == 0)
        fprintf(stderr,
                "ddprun: nothing secret is shared by the %d hosts: any process at "
                "one of their addresses may join this job; to prevent that, set the same "
                "DDPRUN_KEY on all\n",
                o->size);
    if (o->rank > 0)
        return join_run(opts, o, &k, own, k.meeting_file && !o->by_hand ? NULL : head,
                        local_copies_gone_fd(copies));
    int code = gather_peers(opts, o, &k, own, peers, &err);
    if (code == 0 && o->least < o->size)
        peers->late = late_peers_create(opts, o, &k);
    return failed(&err, code);
}

/* The plan of a dry run, without connecting to the others. */
static int plan_dry_run(const struct ambient_job *o, struct peers *peers)
{
    int nodes = o->local_size == o->size ? 1 : o->local_size == 1 ? o->size : 0;
    if (o->rank > 0 && o->by_hand)
        puts("the plan is made by --node-rank 0: its --dry-run shows it");
    if (o->rank > 0)
        return 0;
    if (nodes == 0) {
        printf(
            "%s has started %d instances of ddprun, %d of them on this node: the plan is "
            "made when all have joined\n",
            o->by, o->size, o->local_size);
        return 0;
    }
    peers->alloc = xcalloc(1, sizeof *peers->alloc);
    peers->alloc->source = o->by;
    peers->alloc->changes = o->least < o->size;
    for (int i = 0; i < nodes; i++) {
        OWNED char *name =
            o->hosts.n > (size_t)i ? xstrdup(o->hosts.v[i]) : xasprintf("node%d", i);
        struct alloc_node *node = alloc_add(peers->alloc, name);
        struct msg_join own = {0};
        node->local = i == 0;
        own_slots(&own);
        if (nodes == 1)
            alloc_set_slots(node, o->local_size, SLOTS_GIVEN, "%s", o->size_var);
        else if (own.slots > 0)
            alloc_set_slots(node, (int)own.slots, SLOTS_GIVEN, "%s", own.slots_from);
        free(own.slots_from);
    }
    return 1;
}

/* No variable of Hydra distinguishes one mpiexec from another; but the name of its
 * key-value space is the same on all hosts of one mpiexec, and no other's. */
static int ask_hydra(struct ambient_job *o, int64_t *deadline_ms, struct ddp_err *err)
{
    char name[PMI_CLIENT_LINE], line[PMI_CLIENT_LINE];
    const char *fd = getenv("PMI_FD");
    if (!fd)
        return err_set(err,
                       "PMI_SIZE is set, but PMI_FD, which leads to mpiexec, is not");
    if (pmi_client_begin(atoi(fd), name, deadline_ms, err) < 0 ||
        pmi_client_ask(atoi(fd), "cmd=finalize\n", "finalize_ack", line, deadline_ms,
                       err) < 0)
        return -1;
    free(o->id);
    o->id = xasprintf("hydra %s", name);
    return 0;
}

int peer_take_part(struct opts *opts, struct ambient_job *o, struct peers *peers,
                   struct local_copies **copies, int *code)
{
    struct ddp_err err = {""};
    struct msg_join own;
    int64_t deadline_ms = now_ms() + opts->start_timeout_ms;
    *code = 0;
    if (opts->dry_run)
        return plan_dry_run(o, peers);
    if (!o->id[0] && ask_hydra(o, &deadline_ms, &err) < 0) {
        *code = failed(&err, EXIT_CANNOT_START);
        return 0;
    }
    log_info("%s has started %d instances (%s): this is rank %d, %d of %d on this node",
             o->by, o->size, o->size_var, o->rank, o->local_rank + 1, o->local_size);
    if (o->local_rank > 0) {
        *code = local_copies_follow(o, deadline_ms, &err);
        failed(&err, 0);
        return 0;
    }
    if (o->local_size == 1) {
        local_copies_unbind();
    } else if (!(*copies = local_copies_lead(o, deadline_ms, &err))) {
        *code = failed(&err, EXIT_CANNOT_START);
        return 0;
    }
    describe(opts, o, &own);
    *code = lead(opts, o, &own, *copies, peers);
    msg_join_finish(&own);
    if (o->rank == 0 && peers->alloc) {
        opts->master_addr = NULL; /* was the head's address, not the store's */
        peers->copies_gone_fd = local_copies_gone_fd(*copies);
        return 1;
    }
    local_copies_end(*copies, *code);
    *copies = NULL;
    return 0;
}

void peer_over(struct peers *peers, struct local_copies *copies, int code)
{
    peers_finish(peers);
    local_copies_end(copies, code);
}
