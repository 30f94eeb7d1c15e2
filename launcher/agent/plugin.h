/* launcher/agent/plugin.h - plug-ins on the nodes' side
 *
 * The other half of launcher/job/plugin.h, with the same rules: a row in agent_plugins[]
 * (launcher/plugins/agent_plugins.c), a state of its own, hooks that may be NULL, run
 * in the agent's event loop and do not block. An agent's life, and the hooks called:
 *
 *     agent_run()    init        on every node, before anything is known of the job
 *     JOB arrives    prepare     before any rank of this attempt; for the next attempt
 *                                again, when RESTART arrives
 *     starting       program; rank_facts and rank_env, per rank, once or more often;
 *                    rank_fd, start
 *     running        rank_exited; ranks_over
 *     TERMINATE      stop; then `busy` delays the end of the node, and `spares` saves a
 *                    process from the signals; before_kill
 *     agent_run()    fini
 *     at any time    message
 *
 * With a lost launcher, `stop` is called, and everything on the node is killed.
 */
#ifndef LAUNCHER_AGENT_PLUGIN_H
#define LAUNCHER_AGENT_PLUGIN_H

#include "common/elf_file.h"
#include "launcher/agent/state.h"
#include "launcher/contract.h"

/* A message of the launcher that the plug-in handles: one per type in all plug-ins;
 * f->m is its struct. -1: it is invalid; the agent then acts as without a launcher. */
struct agent_message {
    enum msg_type type;
    int (*handle)(void *state, const struct frame *f, struct ddp_err *err);
};

struct agent_plugin {
    const char *name;

    /* Bytes of the state, which is zeroed, but for its first member, the struct agent *;
     * freed after `fini`. */
    size_t state_size;
    void (*init)(void *state);
    void (*fini)(void *state); /* kills its processes, if any are left */

    /* Before any rank of an attempt. It may change `job`, which is the agent's, but for
     * what the ranks' thread has got a copy of (prepare_create()): argv, apps, env,
     * env_complete, user_set, wdir, bind_to, nnodes, interface; and master_addr in a job
     * of several nodes. -1: the job ends with the message. */
    int (*prepare)(void *state, struct msg_job *job, struct ddp_err *err);

    /* In a thread, as its file system may not answer: read what `program` needs of a
     * program's file. malloc'ed, or NULL: nothing. `elf`: empty if it is no such file;
     * `env` is that of all ranks. */
    void *(*examine)(const char *path, const struct elf *elf, const struct strv *env);
    /* The program has been found; `seen` is from `examine`. -1: no rank is started, and
     * the job ends with the message. Not called for later attempts. */
    int (*program)(void *state, const char *path, const void *seen, struct ddp_err *err);

    /* Set its fields of what launcher/contract.c makes a rank's variables from; texts
     * stay valid until it is called for another rank. */
    void (*rank_facts)(void *state, uint32_t local, struct rank_facts *facts);
    /* Add or replace variables of one rank; `env` has those of launcher/contract.c. */
    void (*rank_env)(void *state, uint32_t local, struct strv *env);
    /* A descriptor that the rank inherits as CHILD_EXTRA_FD, closed by the caller; -1:
     * none. The first plug-in with one wins. */
    int (*rank_fd)(void *state, uint32_t local);
    /* The next rank is to be started. True: the plug-in starts it, and all that follow,
     * in its own time: ranks_next(), ranks_adopt(), ranks_resume() (ranks.h). */
    bool (*start)(void *state);
    void (*rank_exited)(void *state, uint32_t local, const struct msg_exit *how);
    /* No rank runs, and none will be started in this attempt. May be called again. */
    void (*ranks_over)(void *state);

    /* No further rank is started in this attempt. `again`: another one may follow. May be
     * called more than once. */
    void (*stop)(void *state, bool again);
    /* The ranks that are left have not ended by SIGTERM and get SIGKILL. True: the
     * plug-in does something with them first; SIGKILL follows after BEFORE_KILL_MS
     * (policy/grace.h), or when the plug-in calls agent_kill(). */
    bool (*before_kill)(void *state);
    /* It has a process that ends by itself, within a time limit of the plug-in: the node
     * is not at its end. The plug-in calls agent_check() when this changes. */
    bool (*busy)(const void *state);
    /* This process is not to be signalled at the end, nor waited for. `pid` 0: is there
     * any such process? */
    bool (*spares)(const void *state, pid_t pid);

    const struct agent_message *messages; /* the last row is zero */
};

/* All plug-ins; the last is NULL. In launcher/plugins/agent_plugins.c. */
extern const struct agent_plugin *const agent_plugins[];

/* --- for plug-ins ------------------------------------------------------------------- */

/* Send MSG(...) (link/message.h) to the launcher. Without a link it is dropped. */
void agent_send(struct agent *a, enum msg_type type, const void *m);
/* The job cannot go on, or `rank` (~0: all) cannot be started: exit code and message. */
void agent_cannot(struct agent *a, uint32_t rank, int code, const char *text);
/* On a peer, replace the program by that of its own ddprun (agent_setup.own). */
void agent_use_own(const struct agent *a, struct strv *argv, struct strv *env,
                   char **wdir);
/* For connections of this node's processes (launcher/admission/); made when called. */
struct admission *agent_admission(struct agent *a);
/* After `before_kill`: SIGKILL now. */
void agent_kill(struct agent *a);
/* Call after something has ended: advances the state. `arg` is the agent. */
void agent_check(void *arg);

#endif
