/* launcher/agent/hooks.h - the core's calls of the hooks of plug-ins (plugin.h) */
#ifndef LAUNCHER_AGENT_HOOKS_H
#define LAUNCHER_AGENT_HOOKS_H

#include "launcher/agent/plugin.h"
#include "launcher/hooks.h"

#define AGENT_HOOKS(a, hook, ...) \
    HOOKS_CALL(agent_plugins, (a)->plugins, hook, ##__VA_ARGS__)
#define AGENT_HOOKS_ANY(a, hook, ...) \
    HOOKS_ANY(agent_plugins, (a)->plugins, hook, ##__VA_ARGS__)

void agent_plugins_init(struct agent *a);
void agent_plugins_fini(struct agent *a);
int agent_plugins_prepare(struct agent *a, struct msg_job *job, struct ddp_err *err);
/* In any thread: what each plug-in has seen in a program's file, by its row. */
void **agent_plugins_examine(const char *path, const struct strv *env);
void agent_plugins_forget(void **seen);
int agent_plugins_program(struct agent *a, const char *path, void *const *seen,
                          struct ddp_err *err);
int agent_plugins_rank_fd(struct agent *a, uint32_t local);
bool agent_plugins_before_kill(void *agent); /* does one of them delay it? */
/* 1: no plug-in handles this type; -1: it is invalid */
int agent_plugins_message(struct agent *a, const struct frame *f, struct ddp_err *err);

/* Sends LATE if the agent did not run for some time since the last LATE. */
void agent_report_late(struct agent *a);

#endif
