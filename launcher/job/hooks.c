/* launcher/job/hooks.c - see hooks.h */
#include "launcher/job/hooks.h"

#include "common/mem.h"

#include <stdlib.h>

int job_plugins_init(struct job *j, struct ddp_err *err)
{
    size_t n = 0;
    while (job_plugins[n])
        n++;
    j->plugins = xcalloc(n + 1, sizeof *j->plugins);
    for (size_t i = 0; i < n; i++) {
        const struct job_plugin *p = job_plugins[i];
        void *state = xcalloc(1, p->state_size);
        *(struct job **)state = j;
        int rc = p->init ? p->init(state, err) : 0;
        if (rc == 0)
            j->plugins[i] = state;
        else
            free(state);
        if (rc < 0)
            return -1;
    }
    return 0;
}

static void on_tick(evutil_socket_t fd, short what, void *arg)
{
    struct job *j = arg;
    JOB_HOOKS(j, tick);
}

int job_plugins_open(struct job *j, struct ddp_err *err)
{
    bool ticks = false;
    for (size_t i = 0; job_plugins[i]; i++) {
        const struct job_plugin *p = job_plugins[i];
        if (!j->plugins[i])
            continue;
        if (p->open && p->open(j->plugins[i], err) < 0)
            return -1;
        ticks |= p->tick != NULL;
    }
    if (!ticks)
        return 0;
    j->tick = loop_event(j->loop, -1, EV_PERSIST, on_tick, j);
    loop_arm(j->tick, 1000);
    return 0;
}

void job_plugins_fini(struct job *j)
{
    loop_free(j->tick);
    if (!j->plugins)
        return;
    JOB_HOOKS(j, fini);
    for (size_t i = 0; job_plugins[i]; i++)
        free(j->plugins[i]);
    free(j->plugins);
    j->plugins = NULL;
}

void job_replace_ranks(struct job *j, const struct job_plugin *p)
{
    j->instead = p;
}

void job_ask_agents(struct job *j)
{
    j->asks = true;
}

void job_plugins_run(struct job *j)
{
    size_t i = 0;
    while (job_plugins[i] != j->instead)
        i++;
    j->instead->run(j->plugins[i]);
}

int job_plugins_message(struct job *j, unsigned node, const struct frame *f,
                        struct ddp_err *err)
{
    for (size_t i = 0; job_plugins[i]; i++) {
        const struct job_message *m = j->plugins[i] ? job_plugins[i]->messages : NULL;
        for (; m && m->handle; m++) {
            if (m->type == f->type)
                return m->handle(j->plugins[i], node, f, err);
        }
    }
    return 1;
}

void job_ranks_in_mpi(struct job *j)
{
    JOB_HOOKS(j, ranks_in_mpi);
}

json_t *job_waits(struct job *j)
{
    json_t *list = json_array();
    JOB_HOOKS(j, waits, list);
    return list;
}
