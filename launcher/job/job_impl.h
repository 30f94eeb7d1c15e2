/* launcher/job/job_impl.h - what the files of the job share
 *
 * job.c: states and the loop; launch.c: up to running; nodes.c: who is reached how;
 * messages.c: what agents say; io.c: output and input; heartbeat.c: who is alive;
 * fence.c: what nodes tell each other; mpi_absent.c: who never comes to that; shutdown.c:
 * from the first failure to leaving; report.c: what the user reads.
 *
 * Owner: struct job owns all of it. Nodes are numbered as in the allocation, ranks as the
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
#include "launcher/spawn/reap.h"
#include "launcher/spawn/transport.h"

enum job_state {
    JOB_NEW,
    JOB_GATHERING,   /* agents are being started */
    JOB_PREPARING,   /* they are all there; the store's port is being bound */
    JOB_RUNNING,     /* ranks are being started, or run */
    JOB_TERMINATING, /* they are told to end */
    JOB_DRAINING, /* they have exited; what is left of them ends, their output arrives */
    JOB_LEAVING,  /* agents leave */
    JOB_FLUSHING, /* what is left of the output is written */
    JOB_DONE
};

struct job_node {
    const struct alloc_node *host; /* borrowed from the allocation */
    int place;                     /* in plan.nodes; -1: it has no rank */
    struct link *via;       /* borrowed: the link it is reached by; NULL: not there */
    struct msg_hello hello; /* what it said of itself */
    char *trouble;          /* owned: why it does not start, one line; NULL */
    bool wanted, tried_from_here, joined, lost, ended;
    uint32_t owed;       /* output fed since it got credit last */
    uint32_t input_sent; /* input it has not taken yet */
    struct msg_saved saved;
    uint32_t in_mpi;  /* 1 + one of its ranks that is; 0: none */
    int64_t heard_ms; /* monotonic */
    struct silence silence;
    int64_t ahead_ns;     /* its clock minus ours */
    int64_t best_trip_ns; /* of the ping that told so */
};

enum rank_state { RANK_NEW, RANK_RUNS, RANK_EXITED };

struct job_rank {
    enum rank_state state;
    int status;
    int64_t at_ns; /* of its end, on our clock */
    bool told;     /* it had been told to end before it did */
    bool bad;      /* it ended badly, and was not */
    bool unheard;  /* its node was lost before its end was heard of */
    bool left;     /* nothing ends it, SIGKILL neither: left behind */
    char *error;   /* owned: its exception, as it wrote it down; NULL */
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
    struct input *input;   /* owned; NULL: nobody takes input */
    size_t input_window;
    struct signals *signals; /* owned */
    struct job_link {
        struct link *link; /* owned */
        unsigned node;     /* that it leads to first */
        struct job_link *next;
    } * links;           /* owned: all of them */
    uint64_t send_round; /* what goes to all nodes goes once over each link */
    struct link *local;  /* borrowed: the one to our own agent; NULL: none */
    pid_t local_pid;     /* 0: none, or reaped */
    struct event *timeout, *report_timer; /* owned */
    struct event *limit;                  /* owned: of the present state (job.c) */
    struct event *mate_gone; /* owned; NULL: no other ddprun waits on this machine */

    /* for agents on other hosts; all owned */
    struct secret key;
    struct msg_hosts hosts;
    const struct transport *transport; /* borrowed: how they get there */
    char transport_why[200];
    struct node_starter *starter; /* NULL: there are none */
    struct peers *peers;          /* borrowed: who has come by itself; NULL: nobody */
    char *here;                   /* the address by which the first of them reached us */
    struct event *settle;
    struct heartbeat *heartbeat; /* NULL: every rank is on this machine */
    struct preflight *preflight; /* owned; NULL: this is a job that runs */

    struct meeting *meetings; /* owned: of nodes that wait for others (fence.c) */
    uint32_t absent; /* 1 + a rank that never came to MPI; 0: none (mpi_absent.c) */
    struct event *patience; /* owned, likewise */
    struct cause cause;     /* the first one of this attempt */
    struct restart restart;
    int interrupts;  /* how often we were told to end */
    int64_t told_ms; /* when, last */
    bool reported;
    bool output_failed;
    int end_sig;          /* the first that ranks are told to end by */
    int64_t end_grace_ms; /* and what they have then */
    bool hurried;      /* a signal or --timeout wants the end: no reader is waited for */
    int verdict;       /* exit code of a job without a cause: of --preflight */
    int spawned_nodes; /* nodes that have started all their ranks */
    int64_t created_ns;
    int64_t started_ns, spawned_ns, last_exit_ns; /* of this attempt */
    int64_t ready_ns;                             /* spawned_ns of the first */
};

/* job.c */
void job_move(struct job *j, enum job_state to, const char *why); /* writes `state` */
void job_limit(struct job *j); /* the limit of the present state begins anew */
void job_started(struct job *j, const char *why);

/* shutdown.c: limits of states in ms, 0: none, and what follows from them */
int64_t job_limit_terminating(const struct job *j);
int64_t job_limit_draining(const struct job *j);
int64_t job_limit_leaving(const struct job *j);
int64_t job_limit_flushing(const struct job *j);
void job_late_terminating(struct job *j);
void job_late_draining(struct job *j);
void job_late_leaving(struct job *j);
void job_late_flushing(struct job *j);
/*
 * Something went wrong at `c->at_ns`: takes c->text over. The first makes the job end. */
void job_fail(struct job *j, struct cause c);
/* The same, now, for a cause without a rank. */
void job_fail_text(struct job *j, enum cause_kind kind, int code, char *text);
void job_end(struct job *j, int sig, int64_t grace_ms); /* everything that runs */
void job_check(struct job *j); /* has the state reached its aim? */
int job_open_timers(struct job *j, struct ddp_err *err);
void job_arm(struct event *timer, int64_t ms);

/* nodes.c
 *
 * To one node, or with NODE_ALL to each that is there, once per link. */
void job_send(struct job *j, unsigned node, enum msg_type type, const struct pack *k);
bool job_node_there(const struct job_node *n);
void job_node_lost(struct job *j, unsigned node, const char *why);
/* Add a link to the agent of `node`; it leads there, and to those below it, once their
 * HELLOs have come. */
struct link *job_add_link(struct job *j, int fd, const struct link_keys *keys,
                          unsigned node);
/* Close it: the nodes that it leads to are lost, or do not start. */
void job_drop_link(struct job *j, struct link *l, const char *why);
void job_close_links(struct job *j);

/* io.c */
int job_open_streams(struct job *j, struct ddp_err *err);
void job_input_more(struct job *j); /* as far as the nodes have taken it */

/* launch.c, in the order of a launch */
bool job_forks(const struct job *j, size_t node); /* is our own agent that node's */
bool job_all_here(const struct job *j);
int job_choose_transport(struct job *j, struct ddp_err *err);
int job_describe(struct job *j, struct ddp_err *err);
int job_plan(struct job *j, struct ddp_err *err); /* as far as slots are known */
void job_share_of(const struct job *j, int place, struct msg_share *share);
void job_store_wanted(const struct job *j, const char *addr, struct msg_store *store);
void job_hosts(const struct job *j, struct msg_hosts *hosts);
int job_gather(struct job *j, struct ddp_err *err);
int64_t job_limit_gathering(const struct job *j);
void job_late_gathering(struct job *j);
int job_take_peers(struct job *j, struct ddp_err *err);
void job_unreached(struct job *j, unsigned node, const char *line);
void job_ended_early(struct job *j, unsigned node, const char *why); /* before HELLO */
void job_hello(struct job *j, unsigned node, struct link *l, struct msg_hello *hello);
void job_send_store(struct job *j);
void job_store_ready(struct job *j, char *addr, uint32_t port); /* takes `addr` over */

/* heartbeat.c */
int job_start_pulse(struct job *j, struct ddp_err *err);
void job_ping(struct job *j, unsigned node);
int job_hear_pong(struct job *j, unsigned node, const struct frame *f,
                  struct ddp_err *err);

/* fence.c: what nodes tell each other. */
int job_hear_fence(struct job *j, unsigned node, const struct frame *f,
                   struct ddp_err *err);
int job_hear_peer(struct job *j, unsigned node, const struct frame *f,
                  struct ddp_err *err);
int job_hear_abort(struct job *j, unsigned node, const struct frame *f,
                   struct ddp_err *err);
void job_forget_meetings(struct job *j);

/* mpi_absent.c: what MEMBER brings */
int job_open_absent(struct job *j, struct ddp_err *err);
int job_hear_member(struct job *j, unsigned node, const struct frame *f,
                    struct ddp_err *err);
void job_forget_absent(struct job *j);

/* messages.c: a frame from below. */
bool job_rank_is_of(const struct job *j, uint32_t rank, unsigned node);
void job_hear(struct job *j, struct link *l, const struct frame *f);

/* report.c: the lines for the user. */
void job_say(struct job *j, const char *line);
void job_report_failure(struct job *j); /* the headline and the last lines, once */
void job_report_summary(struct job *j); /* --report */
/* Leave the first failure's exception to an agent above us (TORCHELASTIC_ERROR_FILE of
 * our own), as torchrun does. Writes a file: not in the loop. */
void job_pass_error_on(const struct job *j);
const char *job_host_of(int rank, void *arg); /* for tags: NULL on a single host */

#endif
