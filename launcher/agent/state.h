/* launcher/agent/state.h - the state of an agent
 *
 * Plug-ins may read all of it; only launcher/agent/ writes to it.
 */
#ifndef LAUNCHER_AGENT_STATE_H
#define LAUNCHER_AGENT_STATE_H

#include "common/loop.h"
#include "launcher/agent/ext_signals.h"
#include "launcher/agent/relay.h"
#include "launcher/link/heartbeat.h"
#include "launcher/link/link.h"
#include "launcher/link/message.h"
#include "launcher/policy/grace.h"
#include "launcher/transport/reap.h"

struct admission;
struct ranks;

struct agent {
    struct loop *loop; /* owned */
    struct reap *reap; /* owned */
    struct link *up;   /* owned: to the parent; NULL once closed */
    unsigned node;
    struct ext_signals *ext_signals; /* owned */
    struct msg_job job;              /* owned */
    struct msg_share share;          /* owned: this node's part of it */
    struct ranks *ranks;             /* owned; NULL until there is work */
    struct admission *admission;     /* owned; NULL until it is needed */
    struct grace *grace;             /* owned */
    struct event *drain;             /* owned: deadline */
    struct event *strays; /* owned: timer, then processes outside rank groups */
    int end_sig;          /* the last signal sent to stop the ranks; 0: none */
    bool continued;       /* stopped ranks, to handle that signal */
    enum agent_linger {
        LINGER_NONE,
        LINGER_ALL,              /* all ranks exited with 0, and left processes */
        LINGER_SOME,             /* spare the groups of ranks that exited by themselves */
        LINGER_OVER,             /* these are signalled, too */
    } linger;                    /* while processes may end by themselves */
    struct event *lifelines[2];  /* owned; NULL: none */
    struct heartbeat *heartbeat; /* owned */
    struct silence silence;      /* of the launcher */
    bool pinged;                 /* since the last beat */
    bool parent_is_agent;        /* it has sent RELAYED */
    int64_t node_timeout_ms;
    int64_t late_ms;           /* the last LATE */
    bool remote;               /* the launcher is, or may be, on another machine */
    struct event *copy_gone;   /* owned; NULL: no other ddprun waits on this machine */
    struct relay *relay;       /* owned; NULL: no agents below */
    void **plugins;            /* owned: their states, by row of agent_plugins[] */
    bool relays;               /* it may start agents below it */
    const char *log_level;     /* borrowed */
    const struct msg_job *own; /* borrowed, as in agent_setup; NULL: not a peer */
    int code;                  /* exit code */
    bool orphaned;             /* the launcher was lost */
    bool awaits_share;         /* its part of the next attempt (SHARE) may follow */
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

#endif
