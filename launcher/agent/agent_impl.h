/* launcher/agent/agent_impl.h - what the files of the agent share
 *
 * agent.c: its life, and who is above; agent_messages.c: what the launcher says;
 * agent_reports.c: what the launcher is told; agent_shutdown.c: how everything here ends.
 */
#ifndef LAUNCHER_AGENT_AGENT_IMPL_H
#define LAUNCHER_AGENT_AGENT_IMPL_H

#include "common/log.h"
#include "launcher/admission/admission.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/ext_signals.h"
#include "launcher/agent/ranks.h"
#include "launcher/agent/relay.h"
#include "launcher/agent/store_host.h"
#include "launcher/link/heartbeat.h"
#include "launcher/policy/grace.h"
#include "launcher/preflight/probe.h"

struct agent {
    struct loop *loop; /* owned */
    struct reap *reap; /* owned */
    struct link *up;   /* owned; NULL when it has ended */
    unsigned node;
    struct ext_signals *outside; /* owned */
    struct admission *admission; /* owned */
    struct store_host *hosting;  /* owned; the master node's */
    struct msg_job job;          /* owned */
    struct ranks *ranks;         /* owned; NULL until there is work */
    struct grace *grace;         /* owned */
    struct event *drain;         /* owned: deadline */
    struct event *strays;        /* owned: the look for them is due */
    int strays_sig;              /* what they get then */
    struct event *lifelines[2];  /* owned; NULL: none */
    struct heartbeat *heartbeat; /* owned */
    struct silence silence;      /* of the launcher */
    int64_t node_timeout_ms;
    bool remote;               /* the launcher is on another machine, or may be */
    struct event *mate_gone;   /* owned; NULL: no other ddprun waits on this machine */
    struct relay *relay;       /* owned; NULL: nobody is below */
    struct probe *probe;       /* owned; NULL: this is no --preflight */
    bool relays;               /* it may start agents below it */
    const char *log_level;     /* borrowed */
    const struct msg_job *own; /* borrowed: a peer's; NULL */
    int code;                  /* to end with */
    bool again;                /* another attempt may follow this end */
    bool suspended;            /* the launcher has been stopped: its silence is fine */
    enum agent_state {
        AGENT_ACTIVE,
        AGENT_TERMINATING, /* every process of the job is told to end */
        AGENT_DRAINING,    /* none is left, or can be ended; their output is sent */
        AGENT_ENDED        /* ... and has been */
    } state;
    uint32_t drain_ms; /* limit of DRAINING; 0: none */
};

/* agent.c: how long the launcher may be silent */
void agent_set_timeout(struct agent *a, int64_t ms);

/* agent_reports.c; `k` is finished */
void agent_send(struct agent *a, enum msg_type type, struct pack *k);
void agent_cannot(struct agent *a, uint32_t rank, int code, const char *text);
void agent_hello(struct agent *a, int fd);
void agent_log(enum log_level level, const char *line, void *arg); /* for log_sink() */
extern const struct ranks_events agent_ranks_events;

/* agent_messages.c */
void agent_hear(struct link *l, const struct frame *f, void *arg); /* of link_events */
/* What would have been heard, where all is known when the agent is made. */
void agent_follow(struct agent *a, const struct agent_orders *o);

/* agent_shutdown.c */
int agent_end_open(struct agent *a, struct ddp_err *err);
/* Whatever runs here; output then has `drain_ms` (0: no limit). Again: a later step of
 * the escalation, or another limit. */
void agent_end(struct agent *a, int sig, uint32_t grace_ms, uint32_t drain_ms);
void agent_end_renew(struct agent *a); /* for another attempt */
/* Something has ended: has everything? `arg` is the agent. */
void agent_check(void *arg);
void agent_drained(struct agent *a); /* a stream of a rank has ended */
/* Nothing comes from above any more: those below are let go, with a deadline. */
void agent_cut_off(struct agent *a);
/* The same without its leave: nothing that runs here can be of use to anyone. */
void agent_orphaned(struct agent *a, const char *why);

#endif
