/* launcher/job/hooks.h - the core's calls of the hooks of plug-ins (plugin.h) */
#ifndef LAUNCHER_JOB_HOOKS_H
#define LAUNCHER_JOB_HOOKS_H

#include "launcher/job/plugin.h"

/* Call the hook of all plug-ins that have it and a state, with these arguments. */
#define JOB_HOOKS(j, hook, ...)                                         \
    do {                                                                \
        for (size_t i_ = 0; job_plugins[i_]; i_++) {                    \
            if ((j)->plugins[i_] && job_plugins[i_]->hook)              \
                job_plugins[i_]->hook((j)->plugins[i_], ##__VA_ARGS__); \
        }                                                               \
    } while (0)

/* Call it until one returns true: does one? */
#define JOB_HOOK_DOES(j, hook, ...)                                        \
    ({                                                                     \
        bool did_ = false;                                                 \
        for (size_t i_ = 0; job_plugins[i_] && !did_; i_++)                \
            did_ = (j)->plugins[i_] && job_plugins[i_]->hook &&            \
                   job_plugins[i_]->hook((j)->plugins[i_], ##__VA_ARGS__); \
        did_;                                                              \
    })

int job_plugins_init(struct job *j, struct ddp_err *err);
int job_plugins_open(struct job *j, struct ddp_err *err);
void job_plugins_fini(struct job *j);
void job_plugins_run(struct job *j); /* the one that replaces the ranks */
/* Call the hook of all plug-ins; true: all agree. */
bool job_plugins_may_leave(struct job *j);
bool job_plugins_may_restart(struct job *j);
/* 1: no plug-in handles this type; -1: it is invalid */
int job_plugins_message(struct job *j, unsigned node, const struct frame *f,
                        struct ddp_err *err);

#endif
