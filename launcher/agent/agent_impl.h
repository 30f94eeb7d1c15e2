/* launcher/agent/agent_impl.h - definitions shared by the files of the agent
 *
 * agent.c: creation, and watching the parent; agent_messages.c: frames from the launcher;
 * agent_reports.c: frames to the launcher; agent_shutdown.c: shutdown of the node.
 */
#ifndef LAUNCHER_AGENT_AGENT_IMPL_H
#define LAUNCHER_AGENT_AGENT_IMPL_H

#include "common/log.h"
#include "launcher/admission/admission.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/ext_signals.h"
#include "launcher/agent/ranks.h"
#include "launcher/agent/relay.h"
#include "launcher/link/heartbeat.h"
#include "launcher/plugins/preflight/probe.h"
#include "launcher/plugins/store/store_host.h"
#include "launcher/policy/grace.h"

struct agent {
    struct loop *loop; /* owned */
    struct reap *reap; /* owned */
    struct link *up;   /* owned: to the parent; NULL once closed */
    unsigned node;
    struct ext_signals *ext_signals; /* owned */
    struct admission *admission;     /* owned */
    struct store_host *store;        /* owned; NULL except on the master node */
    struct msg_job job;              /* owned */
    struct ranks *ranks;             /* owned; NULL until there is work */
    struct grace *grace;             /* owned */
    struct event *drain;             /* owned: deadline */
    struct event *strays;        /* owned: timer, then processes outside rank groups */
    int strays_sig;              /* ... are sent this signal */
    struct event *lifelines[2];  /* owned; NULL: none */
    struct heartbeat *heartbeat; /* owned */
    struct silence silence;      /* of the launcher */
    int64_t node_timeout_ms;
    bool remote;               /* the launcher is, or may be, on another machine */
    struct event *copy_gone;   /* owned; NULL: no other ddprun waits on this machine */
    struct relay *relay;       /* owned; NULL: no agents below */
    struct probe *probe;       /* owned; NULL: not --preflight */
    bool relays;               /* it may start agents below it */
    const char *log_level;     /* borrowed */
    const struct msg_job *own; /* borrowed, as in agent_setup; NULL: not a peer */
    int code;                  /* exit code */
    bool again;                /* another attempt may follow this shutdown */
    bool suspended;            /* the launcher is stopped (SIGSTOP): no heartbeat check */
    enum agent_state {
        AGENT_ACTIVE,
        AGENT_TERMINATING, /* every process of the job is being signalled */
        AGENT_DRAINING,    /* none is left, or can be killed; sending their output */
        AGENT_ENDED        /* all output is sent */
    } state;
    uint32_t drain_ms; /* limit of DRAINING; 0: none */
};

/* agent.c: limit for missing heartbeats of the launcher */
void agent_set_timeout(struct agent *a, int64_t ms);

/* agent_reports.c; frees `k` */
void agent_send(struct agent *a, enum msg_type type, struct pack *k);
void agent_cannot(struct agent *a, uint32_t rank, int code, const char *text);
void agent_hello(struct agent *a, int fd);
void agent_log(enum log_level level, const char *line, void *arg); /* for log_sink() */
extern const struct ranks_events agent_ranks_events;

/* agent_messages.c */
void agent_on_frame(struct link *l, const struct frame *f,
                    void *arg); /* for link_events */
/* Execute orders that were given at creation. */
void agent_execute(struct agent *a, const struct agent_orders *o);

/* agent_shutdown.c */
int agent_shutdown_init(struct agent *a, struct ddp_err *err);
/* Shut down everything on this node; then output may take `drain_ms` (0: no limit).
 * Called again for a later step of the escalation, or to change the limit. */
void agent_end(struct agent *a, int sig, uint32_t grace_ms, uint32_t drain_ms);
void agent_shutdown_reset(struct agent *a); /* for another attempt */
/* Call after something has ended: advances the state. `arg` is the agent. */
void agent_check(void *arg);
void agent_drained(struct agent *a); /* a stream of a rank has ended */
/* Close the link to the parent and those to the agents below; kill what runs here. */
void agent_cut_off(struct agent *a);
/* The same after an unexpected loss of the launcher: logs `why` (NULL: it closed). */
void agent_orphaned(struct agent *a, const char *why);

#endif
