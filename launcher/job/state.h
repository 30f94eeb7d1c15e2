/* launcher/job/state.h - the state of a job: its nodes, its ranks, and what the core owns
 *
 * Plug-ins may read all of it; but for `verdict`, `job` and what says so only
 * launcher/job/ writes to it. Nodes are numbered as in the allocation, ranks as the
 * program sees them.
 */
#ifndef LAUNCHER_JOB_STATE_H
#define LAUNCHER_JOB_STATE_H

#include "common/limit.h"
#include "launcher/io/output.h"
#include "launcher/job/peers.h"
#include "launcher/link/heartbeat.h"
#include "launcher/link/link.h"
#include "launcher/link/message.h"
#include "launcher/place/plan.h"
#include "launcher/policy/cause.h"
#include "launcher/policy/restart.h"
#include "launcher/transport/reap.h"
#include "launcher/transport/transport.h"

struct job_plugin;

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

/* TOLD_OLD: a place in an earlier plan. */
enum told { TOLD_NOTHING = -3, TOLD_OLD, TOLD_STANDBY };

struct job_node {
    const struct alloc_node *host; /* borrowed from the allocation */
    int place;                     /* index in plan.nodes; -1: no rank on it */
    struct link *via;              /* borrowed: the link to it; NULL: not connected */
    struct msg_hello hello;        /* its agent's description of the machine */
    char *trouble;                 /* owned: why it does not start, one line; or NULL */
    bool follows;                  /* another node's failure may be its cause */
    bool wanted, tried_from_here, joined, lost, ended;
    bool reported;       /* a message has named its trouble */
    bool unasked;        /* it has joined since ranks were told to end */
    bool late;           /* its agent was started after those of the other hosts */
    bool unlisted;       /* its entry may be used for another host */
    bool leaving;        /* no longer offered: gets no rank in the next attempt */
    bool resized;        /* its number of slots has changed since it got its place */
    unsigned holds;      /* it gets no rank before plug-ins have released it */
    int told;            /* its last orders: a place, or enum told */
    uint32_t uncredited; /* bytes of output not yet returned as credit */
    uint32_t input_sent; /* bytes of input it has not consumed */
    int64_t heard_ms;    /* its last frame; monotonic */
    struct silence silence;
    int64_t late_ms;     /* how long its agent did not run */
    int64_t ahead_ns;    /* clock offset: its clock minus ours */
    int64_t best_rtt_ns; /* of the ping that gave ahead_ns */
};

struct job_rank {
    bool exited;
    int status;
    int64_t at_ns;      /* of its exit, on our clock */
    bool stopped;       /* it had been signalled by us before it exited */
    bool failed;        /* it failed without having been signalled */
    bool end_unknown;   /* its node was lost before its exit was reported */
    bool left_behind;   /* it survived SIGKILL */
    uint8_t complete;   /* bit I: all output of stream I has arrived */
    uint64_t peak_kib;  /* its peak memory */
    uint64_t oom_kills; /* on its node, in this attempt, if it failed */
    uint64_t cpu_max_s; /* its limit of CPU time, used up; 0: no */
    char *error;        /* owned: its exception, from TORCHELASTIC_ERROR_FILE; NULL */
    /* of a plug-in: */
    uint64_t collectives; /* entered so far; 0: not known */
    int64_t lag_ns;       /* how late it came to the last of them, on average */
    bool straggles;
};

struct job_table;
struct job_link;

struct job {
    const struct opts *opts; /* borrowed */
    struct alloc *alloc;     /* borrowed */
    struct plan *plan;       /* owned; NULL until slots are known */
    struct job_node *nodes;  /* owned, alloc->nnodes of them */
    struct job_rank *ranks;  /* owned, plan->nranks of them */
    int running;             /* ranks that have not exited */
    struct msg_job job;      /* owned: for all agents */

    struct loop *loop;              /* owned */
    struct reap *reap;              /* owned */
    struct output *output;          /* owned */
    struct control *control;        /* owned: requests of other programs */
    struct subscriber *subscribers; /* owned: of events (events.h) */
    const char *log_level;          /* borrowed: of the agents; NULL: quiet */

    /* states.c */
    enum job_state state;
    const struct job_table *table; /* borrowed: job.c's */
    struct limit *limit;           /* owned: of the present state */

    /* nodes.c */
    struct job_link *links; /* owned: all of them */
    struct link *local;     /* borrowed: the link to our own agent; NULL: none */
    pid_t local_pid;        /* 0: none, or reaped */
    unsigned ended;         /* nodes up to here have ended their ranks */

    /* agents on other hosts; all owned */
    struct msg_hosts hosts;
    const struct transport *transport; /* borrowed: how they are started */
    char transport_why[200];
    struct node_starter *starter; /* NULL: no agents to start */
    struct peers *peers; /* borrowed: nodes that connected by themselves, or NULL */
    char *here;          /* our address that the first of them connected to */

    struct job_gathering {
        struct secret key;
        struct event *settle; /* owned: until hosts that do not start are reported */
        unsigned settled;     /* nodes up to here have joined or failed */
    } gathering;              /* gather.c */

    struct job_beats {
        struct heartbeat *heartbeat; /* owned */
        unsigned next_probe;         /* a ping of its own is for this node */
    } beats;                         /* heartbeat.c */

    struct job_streams {
        struct input *input;   /* owned; NULL: no rank reads input */
        bool ended;            /* of the input */
        bool failed;           /* input was not read, or output not written */
    } streams;                 /* io.c */
    struct terminal *terminal; /* owned; NULL before streams are open */

    /* hooks.c */
    void **plugins;     /* owned: their states, by row of job_plugins[] (plugin.h) */
    struct event *tick; /* owned; NULL: no plug-in has this hook */
    const struct job_plugin *instead; /* runs in place of the ranks; NULL: none */
    bool asks;      /* agents are asked before ranks are placed, also on one machine */
    unsigned holds; /* in JOB_PREPARING: what has to be ready before ranks are started */

    struct job_requests {
        struct signals *signals;
        int interrupts;          /* signals to end that ddprun has got */
        int64_t interrupted_ms;  /* the last of them; monotonic */
        struct event *copy_gone; /* NULL: no other ddprun waits on this machine */
    } requests;                  /* job.c; all owned */

    struct cause cause; /* the earliest one of this attempt */
    struct restart restart;
    bool reported;
    unsigned left; /* hosts on which ranks that exited well have left processes */
    int verdict;   /* exit code without a cause; set by plug-ins */

    struct job_spawned {
        unsigned running, ended;
    } spawned; /* of a plug-in: jobs that ranks have spawned, and those that these have */

    struct job_ending {
        struct event *timeout, *report_timer; /* owned */
        int64_t timeout_at_ms; /* when --timeout will have passed; 0: it does not run */
        int sig;               /* the first signal of the escalation */
        int64_t grace_ms;      /* time to the next one */
        bool hurried;     /* by a signal or --timeout: do not wait for a slow reader */
        bool urgent;      /* by --timeout or a second Ctrl-C: nor for a silent agent */
        bool silent_lost; /* after a second Ctrl-C: silent agents have been given up */
        bool agents_killed, agents_hang; /* after one and two limits of JOB_LEAVING */
    } ending;                            /* states.c; the agents: shutdown.c */

    bool store_lost;   /* with its node, and ranks of the others keep running */
    int spawned_nodes; /* nodes that have started all of their ranks */
    int64_t created_ns;
    int64_t counted_ns; /* when the launcher counted the last exit of a rank */
    int64_t started_ns, spawned_ns, last_exit_ns; /* of this attempt */
    int64_t ready_ns;                             /* the first spawned_ns */
};

/* Loops over all nodes: EACH_NODE (j, n) { ... }, and what is so of any of them, or of
 * how many: ANY_NODE(j, n, n->lost). */
#define EACH_NODE(j, n) \
    for (struct job_node *n = (j)->nodes; n < (j)->nodes + (j)->alloc->nnodes; n++)
#define ANY_NODE(j, n, is_so)   \
    ({                          \
        bool any_ = false;      \
        EACH_NODE (j, n) {      \
            if ((any_ = is_so)) \
                break;          \
        }                       \
        any_;                   \
    })
#define COUNT_NODES(j, n, is_so) \
    ({                           \
        unsigned count_ = 0;     \
        EACH_NODE (j, n)         \
            count_ += is_so;     \
        count_;                  \
    })

#endif
