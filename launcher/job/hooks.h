/* launcher/job/hooks.h - the core's calls of the hooks of plug-ins (plugin.h) */
#ifndef LAUNCHER_JOB_HOOKS_H
#define LAUNCHER_JOB_HOOKS_H

#include "launcher/hooks.h"
#include "launcher/job/plugin.h"

#define JOB_HOOKS(j, hook, ...) HOOKS_CALL(job_plugins, (j)->plugins, hook, ##__VA_ARGS__)
#define JOB_HOOKS_ANY(j, hook, ...) \
    HOOKS_ANY(job_plugins, (j)->plugins, hook, ##__VA_ARGS__)
#define JOB_HOOKS_ALL(j, hook) HOOKS_ALL(job_plugins, (j)->plugins, hook)

int job_plugins_init(struct job *j, struct ddp_err *err);
int job_plugins_open(struct job *j, struct ddp_err *err);
void job_plugins_fini(struct job *j);
void job_plugins_run(struct job *j); /* the one that replaces the ranks */
/* 1: no plug-in handles this type; -1: it is invalid */
int job_plugins_message(struct job *j, unsigned node, const struct frame *f,
                        struct ddp_err *err);

#endif
