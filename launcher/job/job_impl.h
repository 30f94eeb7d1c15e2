/* launcher/job/job_impl.h - private header of launcher/job/
 *
 * job.c: states and the event loop; launch.c: from the allocation to running ranks;
 * nodes.c: links to agents; messages.c: handlers of agents' messages; io.c: output and
 * input; heartbeat.c: liveness; fence.c: data exchanged between nodes; mpi_absent.c:
 * ranks that never call MPI_Init; shutdown.c: from the first failure to the exit;
 * report.c: lines for the user.
 *
 * struct job owns all of it. Nodes are numbered as in the allocation, ranks as the
 * program sees them.
 */
#ifndef LAUNCHER_JOB_JOB_IMPL_H
#define LAUNCHER_JOB_JOB_IMPL_H

#include "launcher/io/output.h"
#include "launcher/job/address_map.h"
#include "launcher/job/input.h"
#include "launcher/job/job.h"
#include "launcher/link/heartbeat.h"
#include "launcher/link/link.h"
#include "launcher/link/message.h"
#include "launcher/place/plan.h"
#include "launcher/policy/cause.h"
#include "launcher/policy/restart.h"
#include "launcher/transport/reap.h"
#include "launcher/transport/transport.h"

enum job_state {
    JOB_NEW,
    JOB_GATHERING,   /* agents are being started */
    JOB_PREPARING,   /* all have joined; the store's port is being bound */
    JOB_RUNNING,     /* ranks are being started, or are running */
    JOB_TERMINATING, /* ranks are being stopped, by escalating signals */
    JOB_DRAINING, /* ranks have exited; their orphans are killed, their output arrives */
    JOB_LEAVING,  /* agents exit */
    JOB_FLUSHING, /* the rest of the output is written */
    JOB_DONE
};

struct job_node {
    const struct alloc_node *host; /* borrowed from the allocation */
    int place;                     /* index in plan.nodes; -1: no rank on it */
    struct link *via;              /* borrowed: the link to it; NULL: not connected */
    struct msg_hello hello;        /* its agent's description of the machine */
    char *trouble;                 /* owned: why it does not start, one line; or NULL */
    bool wanted, tried_from_here, joined, lost, ended;
    uint32_t uncredited; /* bytes of output not yet returned as credit */
    uint32_t input_sent; /* bytes of input it has not consumed */
    struct msg_saved saved;
    uint32_t in_mpi;  /* 1 + one of its ranks that is in MPI; 0: none */
    int64_t heard_ms; /* its last frame; monotonic */
    struct silence silence;
    int64_t ahead_ns;    /* clock offset: its clock minus ours */
    int64_t best_rtt_ns; /* of the ping that gave ahead_ns */
};

enum rank_state { RANK_NEW, RANK_RUNS, RANK_EXITED };

struct job_rank {
    enum rank_state state;
    int status;
    int64_t at_ns;    /* of its exit, on our clock */
    bool stopped;     /* it had been signalled by us before it exited */
    bool failed;      /* it failed without having been signalled */
    bool end_unknown; /* its node was lost before its exit was reported */
    bool left_behind; /* it survived SIGKILL */
    char *error;      /* owned: its exception, from TORCHELASTIC_ERROR_FILE; NULL */
};

struct job {
    const struct opts *opts; /* borrowed */
    struct alloc *alloc;     /* borrowed */
    struct plan *plan;       /* owned; NULL until slots are known */
    enum job_state state;
    struct job_node *nodes;       /* owned, alloc->nnodes of them */
    struct job_rank *ranks;       /* owned, plan->nranks of them */
    struct address_map addresses; /* owned: of `nodes` */
    int running;                  /* ranks that have not exited */
    struct msg_job job;           /* owned: for all agents */

    struct loop *loop;     /* owned */
    struct reap *reap;     /* owned */
    struct output *output; /* owned */
    struct input *input;   /* owned; NULL: no rank reads input */
    size_t input_window;
    struct signals *signals; /* owned */
    struct job_link {
        struct link *link; /* owned */
        unsigned node;     /* whose agent is at its other end */
        struct job_link *next;
    } * links;           /* owned: all of them */
    uint64_t send_round; /* number of the last broadcast: each link gets it once */
    struct link *local;  /* borrowed: the link to our own agent; NULL: none */
    pid_t local_pid;     /* 0: none, or reaped */
    struct event *timeout, *report_timer; /* owned */
    struct event *limit;                  /* owned: of the present state (job.c) */
    struct event *copy_gone; /* owned; NULL: no other ddprun waits on this machine */

    /* for agents on other hosts; all owned */
    struct secret key;
    struct msg_hosts hosts;
    const struct transport *transport; /* borrowed: how they are started */
    char transport_why[200];
    struct node_starter *starter; /* NULL: no agents to start */
    struct peers *peers; /* borrowed: nodes that connected by themselves, or NULL */
    char *here;          /* our address that the first of them connected to */
    struct event *settle;
    struct heartbeat *heartbeat; /* NULL: all ranks are on this machine */
    struct preflight *preflight; /* owned; NULL: ranks are started */

    struct fence *fences;       /* owned: those that nodes wait in (fence.c) */
    uint32_t absent;            /* 1 + a rank that never called MPI_Init; 0: none */
    struct event *absent_timer; /* owned (mpi_absent.c) */
    struct cause cause;         /* the earliest one of this attempt */
    struct restart restart;
    int interrupts;         /* signals to end that ddprun has got */
    int64_t interrupted_ms; /* the last of them; monotonic */
    bool reported;
    bool output_failed;
    int end_sig;          /* the first signal of the escalation */
    int64_t end_grace_ms; /* time to the next one */
    bool hurried; /* ended by a signal or --timeout: do not wait for a slow reader */
    bool agents_killed, agents_hang; /* in JOB_LEAVING, after one and two limits */
    int verdict;                     /* exit code without a cause, set by --preflight */
    int spawned_nodes;               /* nodes that have started all of their ranks */
    int64_t created_ns;
    int64_t started_ns, spawned_ns, last_exit_ns; /* of this attempt */
    int64_t ready_ns;                             /* spawned_ns of the first */
};

/* job.c */
void job_move(struct job *j, enum job_state to, const char *why); /* writes `state` */
void job_limit(struct job *j); /* restart the time limit of the present state */
void job_started(struct job *j, const char *why);

/* shutdown.c: time limits of states in ms (0: none), and handlers for when they pass */
int64_t job_limit_terminating(const struct job *j);
int64_t job_limit_draining(const struct job *j);
int64_t job_limit_leaving(const struct job *j);
int64_t job_limit_flushing(const struct job *j);
void job_late_terminating(struct job *j);
void job_late_draining(struct job *j);
void job_late_leaving(struct job *j);
void job_late_flushing(struct job *j);

/* Report a failure; takes c.text over. The first one starts the shutdown of the job. */
void job_fail(struct job *j, struct cause c);
/* The same for a failure now, of no rank; takes `text` over. */
void job_fail_text(struct job *j, enum cause_kind kind, int code, char *text);
void job_end(struct job *j, int sig, int64_t grace_ms); /* stop all ranks */
void job_check(struct job *j); /* go on to the next state if this one is complete */
int job_open_timers(struct job *j, struct ddp_err *err);
void job_arm(struct event *timer, int64_t ms);

/* nodes.c
 *
 * Send to one node, or with NODE_ALL to all connected nodes, once per link. */
void job_send(struct job *j, unsigned node, enum msg_type type, const struct pack *k);
bool job_node_connected(const struct job_node *n);
void job_node_lost(struct job *j, unsigned node, const char *why);
/* Add a link to the agent of `node`. HELLOs tell which nodes are reached over it: `node`,
 * and those below it in the tree. */
struct link *job_add_link(struct job *j, int fd, const struct link_keys *keys,
                          unsigned node);
/* Close it: the nodes reached over it are lost, or have failed to start. */
void job_drop_link(struct job *j, struct link *l, const char *why);
void job_close_links(struct job *j);

/* io.c */
int job_open_streams(struct job *j, struct ddp_err *err);
void job_input_more(struct job *j); /* as much as the nodes have consumed */

/* launch.c, in the order of a launch */
bool job_forks_agent(const struct job *j, size_t node); /* is its agent a fork of ours? */
bool job_is_local(const struct job *j);
int job_choose_transport(struct job *j, struct ddp_err *err);
int job_describe(struct job *j, struct ddp_err *err);
int job_plan(struct job *j, struct ddp_err *err); /* if slots are known */
void job_share_of(const struct job *j, int place, struct msg_share *share);
void job_store_wanted(const struct job *j, const char *addr, struct msg_store *store);
void job_hosts(const struct job *j, struct msg_hosts *hosts);
int job_gather(struct job *j, struct ddp_err *err);
int64_t job_limit_gathering(const struct job *j);
void job_late_gathering(struct job *j);
int job_take_peers(struct job *j, struct ddp_err *err);
void job_unreached(struct job *j, unsigned node, const char *line);
void job_start_failed(struct job *j, unsigned node, const char *why); /* before HELLO */
void job_node_joined(struct job *j, unsigned node, struct link *l,
                     struct msg_hello *hello);
void job_send_store(struct job *j);
void job_store_ready(struct job *j, char *addr, uint32_t port); /* takes `addr` over */

/* heartbeat.c */
int job_start_heartbeat(struct job *j, struct ddp_err *err);
void job_ping(struct job *j, unsigned node);
int job_handle_pong(struct job *j, unsigned node, const struct frame *f,
                    struct ddp_err *err);

/* fence.c: messages between nodes */
int job_handle_fence(struct job *j, unsigned node, const struct frame *f,
                     struct ddp_err *err);
int job_handle_peer(struct job *j, unsigned node, const struct frame *f,
                    struct ddp_err *err);
int job_handle_abort(struct job *j, unsigned node, const struct frame *f,
                     struct ddp_err *err);
void job_reset_fences(struct job *j);

/* mpi_absent.c */
int job_open_absent(struct job *j, struct ddp_err *err);
int job_handle_member(struct job *j, unsigned node, const struct frame *f,
                      struct ddp_err *err);
void job_reset_absent(struct job *j);

/* messages.c: a frame from an agent */
bool job_rank_is_of(const struct job *j, uint32_t rank, unsigned node);
void job_handle_frame(struct job *j, struct link *l, const struct frame *f);

/* report.c: lines for the user */
void job_say(struct job *j, const char *line);
void job_report_failure(struct job *j); /* the headline and the last lines, once */
void job_report_summary(struct job *j); /* --report */
/* Write the failed rank's exception to our own TORCHELASTIC_ERROR_FILE, for a launcher
 * above ddprun, as torchrun does. Blocks on a file: not for the event loop. */
void job_pass_error_on(const struct job *j);
const char *job_host_of(int rank, void *arg); /* for tags: NULL on a single host */

#endif
