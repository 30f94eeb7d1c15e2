/* launcher/job/plugin.h - plug-ins on the launcher's side
 *
 * What only some jobs need is a plug-in: a folder in launcher/plugins/, and a row in
 * job_plugins[] (launcher/plugins/job_plugins.c). The core calls the hooks of all
 * plug-ins in the order of that table and knows none by name. Its other half, on the
 * nodes, is launcher/agent/plugin.h.
 *
 * A plug-in has one state per job, made by `init` and passed to its other hooks; without
 * a state it takes no part in the job and no other hook of it is called. It reads the
 * job's state (state.h), calls the functions at the end of this file, and includes link/,
 * common/ and the core's public headers, but no other plug-in. Every hook may be NULL.
 * All run in the launcher's event loop and must not block. A job's life, and the hooks
 * called:
 *
 *     job_create()     init     in the process that the local agent is then forked from
 *     job_run()        open     the event loop exists
 *     gathering        node_joined, per node
 *     preparing        prepare, once per attempt; or run, in place of the ranks
 *     running          ranks_started; rank_exited, per rank
 *     terminating      shutdown, once per attempt
 *     draining         may_leave; or may_restart, then next_attempt (back to preparing)
 *     flushing         report, with --report
 *     the exit         end
 *     job_destroy()    fini
 *     at any time      message, output, tick, node_lost, host_failed, node_joined (later)
 *
 * A job on this machine alone takes a short way: its agent has its orders when it is
 * forked, so there is no gathering and no preparing, and node_joined and prepare are not
 * called, but local_orders is, in the agent's process.
 */
#ifndef LAUNCHER_JOB_PLUGIN_H
#define LAUNCHER_JOB_PLUGIN_H

#include "launcher/job/state.h"

#include <jansson.h>

/* A message of the agents that the plug-in handles: one per type in all plug-ins. `node`
 * has sent it, f->m is its struct. -1: it is invalid; its link is then dropped. */
struct job_message {
    enum msg_type type;
    int (*handle)(void *state, unsigned node, const struct frame *f, struct ddp_err *err);
};

struct agent_orders;

struct job_plugin {
    const char *name;

    /* Bytes of the state, which is zeroed, but for its first member, the struct job *;
     * freed after `fini`. */
    size_t state_size;
    /* The options are read. 1: no part in this job. -1: the job is refused, with one line
     * for the user. There is no `fini` after either. Opens no descriptors: the process
     * forks after it. Must not use the plan or the loop. */
    int (*init)(void *state, struct ddp_err *err);
    /* Create timers and descriptors. -1: ddprun exits with the message. */
    int (*open)(void *state, struct ddp_err *err);
    /* Free what the state owns. Also called in the forked local agent, and without `open`
     * when the job has failed before. */
    void (*fini)(void *state);

    void (*node_joined)(void *state, unsigned node);
    void (*node_lost)(void *state, unsigned node, const char *why);
    /* A host of job_host_start() has not joined: one line that begins with its name. */
    void (*host_failed)(void *state, unsigned node, const char *line);

    /* For a plug-in that has called job_replace_ranks(): every host has joined or failed
     * (job_node.trouble). The plug-in runs in place of the ranks, without a plan if slots
     * were unknown, and calls job_end() at its end. A lost node does not end the job. */
    void (*run)(void *state);

    /* Every agent has joined and there is a plan. Between job_hold(), which may be called
     * here, and job_release() no orders are sent. May change j->job, which is sent with
     * them. */
    void (*prepare)(void *state);
    /* In its place for a job on this machine alone: messages for the agent, by
     * agent_orders_add(). */
    void (*local_orders)(void *state, struct agent_orders *orders);
    void (*ranks_started)(void *state);              /* all of them, on every node */
    void (*rank_exited)(void *state, uint32_t rank); /* its fields in j->ranks are set */
    /* A rank has failed. False: that ends the attempt. True: the plug-in has claimed the
     * rank: it starts it again by job_start_rank(), or the job continues without it. */
    bool (*rank_failed)(void *state, uint32_t rank);
    /* A node is lost while its ranks run. False: that ends the attempt. True: the plug-in
     * has claimed it and called job_node_vacate(): the job continues. */
    bool (*node_claimed)(void *state, unsigned node, const char *why);
    /* job_add_nodes() has added ranks, from this number on, to the present attempt. */
    void (*ranks_added)(void *state, int first);
    /* Add variables of one rank, for its first start, with its node. */
    void (*rank_env)(void *state, uint32_t rank, struct strv *env);

    /* Bytes of a rank's stdout (0) or stderr (1) have arrived. */
    void (*output)(void *state, int rank, unsigned stream, const void *data, size_t size);

    /* The ranks are about to be stopped (j->cause is the reason) or have all exited. */
    void (*shutdown)(void *state);
    /* ddprun got a signal that ends a job. True: the plug-in has handled it. */
    bool (*signal)(void *state, int sig);
    /* ... or one that it passes on to all ranks; SIGSTOP, also at Ctrl-Z, and SIGCONT. */
    void (*pass_signal)(void *state, int sig);
    /* Every node has ended its ranks. False: the agents have to stay; the plug-in calls
     * job_check() when they may go, within a time limit of its own. */
    bool (*may_leave)(void *state);
    /* Every node has ended its ranks, and another attempt is due. False: not yet; the
     * plug-in calls job_check() later, or job_fail() to end the job. */
    bool (*may_restart)(void *state);
    /* Another attempt begins: forget the last one. `prepare` follows. */
    void (*next_attempt)(void *state);
    void (*end)(void *state, int code); /* of ddprun; the loop has stopped */
    /* For --dry-run, which calls only `init` and `fini` beside it: add lines. */
    void (*dry_run)(void *state, struct strv *lines);
    void (*report)(void *state); /* add lines to the summary, with job_say() */

    void (*ranks_in_mpi)(void *state); /* all of them have called MPI_Init */

    /* A hang report is made, or may be due: add what ranks wait for by this plug-in, as
     * objects: "text", a sentence, "ranks", of which some are waited for, and "hang_ms"
     * of a wait that is a hang when it lasts for --hang-after: so far. */
    void (*waits)(void *state, json_t *list);

    void (*tick)(void *state);          /* every second, from `open` on */
    const struct job_message *messages; /* the last row is zero */
};

/* All plug-ins; the last is NULL. In launcher/plugins/job_plugins.c. */
extern const struct job_plugin *const job_plugins[];

/* --- for plug-ins ------------------------------------------------------------------- */

/* Send MSG(...) (link/message.h) to one node, or to all connected ones: NODE_ALL. */
void job_send(struct job *j, unsigned node, enum msg_type type, const void *m);
/* The same to all nodes; returns how many take part, each of which answers. */
unsigned job_ask(struct job *j, enum msg_type type, const void *m);
bool job_node_connected(const struct job_node *n);
/* Is it connected, with a place in the attempt's plan? A spare has none. */
bool job_node_takes_part(const struct job_node *n);
bool job_rank_is_of(const struct job *j, uint32_t rank, unsigned node);

/* In `init`: this plug-in runs in place of the ranks (`run`). At most one can. */
void job_replace_ranks(struct job *j, const struct job_plugin *p);
/* In `init`: agents are asked, also on this machine alone, before ranks are placed. */
void job_ask_agents(struct job *j);
/* Between these, in `node_joined` or later, a node gets no rank. */
void job_node_hold(struct job *j, unsigned node);
void job_node_release(struct job *j, unsigned node);
/* It cannot be used, as if its agent had ended. */
void job_node_lost(struct job *j, unsigned node, const char *why);
/* Start the time of --timeout, unless it runs: it is for all attempts together. */
void job_begin_timeout(struct job *j);
void job_hold(struct job *j);
void job_release(struct job *j);

/* Hosts that come and go; only if job_may_gain(). A host is added to the allocation (-1:
 * there is no room), its agent is started, or started again after the node was lost; it
 * joins (node_joined) or not (host_failed). */
bool job_may_gain(const struct job *j);
size_t job_hosts_most(const struct job *j); /* how many may be in use, or spare */
long job_host_add(struct job *j, const struct alloc_node *as);
void job_host_start(struct job *j, unsigned node);
void job_host_forget(struct job *j, unsigned node); /* its entry may be used again */
void job_host_offered(struct job *j, unsigned node, bool offered);    /* it is listed */
void job_host_failed(struct job *j, unsigned node, const char *line); /* its start has */
bool job_node_usable(const struct job_node *n);
bool job_has_enough(struct job *j);       /* nodes for another attempt? */
bool job_any_held(const struct job *j);   /* not known yet: one may be released */
bool job_can_grow(const struct job *j);   /* would the next attempt have more nodes? */
bool job_can_drop(const struct job *j);   /* ... without those that are not offered? */
bool job_can_resize(const struct job *j); /* ... another number of ranks on some? */
/* Ranks that the node may have; 0: it has too few slots for --nproc-per-node. */
int job_node_room(const struct job *j, const struct job_node *n);
/* Stop the ranks and start them again, with other nodes: one line. */
void job_resize(struct job *j, const char *why);

/* While ranks run. Start a rank again that has exited; takes `env`, variables that
 * replace its usual ones, over. */
void job_start_rank(struct job *j, uint32_t rank, struct strv *env);
/* Nodes that have joined, and have no ranks, get places in the plan, up to --nnodes;
 * their ranks are new ones, or those of a node that has left. */
bool job_can_add(const struct job *j);
void job_add_nodes(struct job *j);
long job_node_at(const struct job *j, int place); /* -1: the place is vacant */
unsigned job_store_node(const struct job *j);     /* rank 0's, when the attempt began */
/* Is MASTER_PORT left to the program, and the store served at another port? A job of
 * one rank, which cannot grow: a program that starts processes of its own then works as
 * without a launcher. */
bool job_store_is_separate(const struct job *j);
/* If `addr`, from --master-addr or --interface, is a loopback address, and a node is on
 * another machine than `master`: that node, and "cannot reach rank 0's host at ...",
 * malloc'ed; else NULL. */
char *job_unreachable(const struct job *j, unsigned master, const char *addr,
                      unsigned *node);
/* Does the node run the store of this attempt? */
bool job_has_store(const struct job *j, unsigned node);
/* Its slots have changed: it could have another number of ranks than in its place. */
bool job_node_resized(const struct job *j, unsigned node);
bool job_node_runs(const struct job *j,
                   unsigned node);                 /* it has been started, not ended */
void job_start_node(struct job *j, unsigned node); /* all ranks of its place */
void job_end_node(struct job *j, unsigned node);   /* its ranks; job_node.ended follows */
void job_node_vacate(struct job *j, unsigned node); /* it has ended, or is lost */

/* Report a failure; takes c.text over. The first one starts the shutdown of the job. */
void job_fail(struct job *j, struct cause c);
/* The same for the exit of a rank, as it was reported. */
void job_fail_rank(struct job *j, int rank);
/* The same for a failure now, of no rank; takes `text` over. */
void job_fail_text(struct job *j, enum cause_kind kind, int code, char *text);
void job_end(struct job *j, int sig, int64_t grace_ms); /* stop all ranks */
void job_check(struct job *j); /* go on to the next state if this one is complete */

/* Another process of the plug-in's writes lines to our terminal, if we have one. */
void job_share_terminal(struct job *j);
void job_ranks_in_mpi(struct job *j); /* the hook of that name of all plug-ins */
json_t *job_waits(struct job *j);     /* the hook `waits` of all plug-ins: a new list */
/* How long launcher and agents did not run: {"launcher_s": 0.0, "hosts": {"n1": 5.3},
 * "sentences": ["the agent on n1 did not run for ..."]}. The caller owns it. */
json_t *job_late(const struct job *j);
/* A line to stderr, between those of ranks. */
void job_say(struct job *j, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
