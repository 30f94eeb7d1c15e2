/* launcher/agent/hooks.c - see hooks.h; and messages of the core and of plug-ins to the
 * launcher (plugin.h) */
#include "launcher/agent/hooks.h"

#include "common/mem.h"

#include <stdlib.h>

static size_t count_plugins(void)
{
    size_t n = 0;
    while (agent_plugins[n])
        n++;
    return n;
}

/* Without a link it is dropped: the launcher is lost, or has sent SHUTDOWN. */
void agent_send(struct agent *a, enum msg_type type, const void *m)
{
    if (a->relay && msg_merge(type) != MERGE_PASS)
        relay_send(a->relay, type, m);
    else if (a->up)
        link_send_msg(a->up, a->node, type, m);
}

void agent_cannot(struct agent *a, uint32_t rank, int code, const char *text)
{
    agent_send(a, MSG(spawn_failed, rank, (uint32_t)code, msg_text(text)));
}

void agent_report_late(struct agent *a)
{
    int64_t late_ms = heartbeat_late_ms(a->heartbeat);
    if (late_ms <= a->late_ms)
        return;
    a->late_ms = late_ms;
    agent_send(a, MSG(late, late_ms));
}

void agent_plugins_init(struct agent *a)
{
    size_t n = count_plugins();
    a->plugins = xcalloc(n + 1, sizeof *a->plugins);
    for (size_t i = 0; i < n; i++) {
        const struct agent_plugin *p = agent_plugins[i];
        a->plugins[i] = xcalloc(1, p->state_size);
        *(struct agent **)a->plugins[i] = a;
        if (p->init)
            p->init(a->plugins[i]);
    }
}

void agent_plugins_fini(struct agent *a)
{
    if (!a->plugins)
        return;
    AGENT_HOOKS(a, fini);
    for (size_t i = 0; agent_plugins[i]; i++)
        free(a->plugins[i]);
    free(a->plugins);
    a->plugins = NULL;
}

int agent_plugins_prepare(struct agent *a, struct msg_job *job, struct ddp_err *err)
{
    for (size_t i = 0; agent_plugins[i]; i++) {
        const struct agent_plugin *p = agent_plugins[i];
        if (a->plugins[i] && p->prepare && p->prepare(a->plugins[i], job, err) < 0)
            return -1;
    }
    return 0;
}

void **agent_plugins_examine(const char *path, const struct strv *env)
{
    size_t n = count_plugins();
    void **seen = xcalloc(n + 1, sizeof *seen);
    SCOPED(elf_finish) struct elf elf = {0};
    elf_read(path, &elf);
    for (size_t i = 0; i < n; i++) {
        if (agent_plugins[i]->examine)
            seen[i] = agent_plugins[i]->examine(path, &elf, env);
    }
    return seen;
}

void agent_plugins_forget(void **seen)
{
    for (size_t i = 0; seen && agent_plugins[i]; i++)
        free(seen[i]);
    free(seen);
}

int agent_plugins_program(struct agent *a, const char *path, void *const *seen,
                          struct ddp_err *err)
{
    for (size_t i = 0; agent_plugins[i]; i++) {
        const struct agent_plugin *p = agent_plugins[i];
        if (a->plugins[i] && p->program &&
            p->program(a->plugins[i], path, seen[i], err) < 0)
            return -1;
    }
    return 0;
}

int agent_plugins_rank_fd(struct agent *a, uint32_t local)
{
    int fd = -1;
    for (size_t i = 0; agent_plugins[i] && fd < 0; i++) {
        if (a->plugins[i] && agent_plugins[i]->rank_fd)
            fd = agent_plugins[i]->rank_fd(a->plugins[i], local);
    }
    return fd;
}

bool agent_plugins_before_kill(void *agent)
{
    struct agent *a = agent;
    bool delayed = false;
    for (size_t i = 0; agent_plugins[i]; i++) {
        if (a->plugins[i] && agent_plugins[i]->before_kill)
            delayed |= agent_plugins[i]->before_kill(a->plugins[i]);
    }
    return delayed;
}

int agent_plugins_message(struct agent *a, const struct frame *f, struct ddp_err *err)
{
    for (size_t i = 0; agent_plugins[i]; i++) {
        const struct agent_message *m = a->plugins[i] ? agent_plugins[i]->messages : NULL;
        for (; m && m->handle; m++) {
            if (m->type == f->type)
                return m->handle(a->plugins[i], f, err);
        }
    }
    return 1;
}
