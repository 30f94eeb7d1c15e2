/* launcher/spawned.c - see spawned.h */
#include "launcher/spawned.h"

#include "common/mem.h"

#include <stdlib.h>

/* Takes a variable out of the environment; malloc'ed. NULL: it is not set. */
static char *take_variable(const char *name)
{
    char *value = xstrdup(getenv(name));
    unsetenv(name);
    return value;
}

/* Placement, restarts, limits, reports and listings are the other ddprun's, also those of
 * options that are not on the command line. */
static void leave_out(struct opts *o)
{
    o->per_node = o->nnodes = o->min_np = o->max_np = o->start_np = 0;
    o->per_gpu = o->per_cpu = false;
    o->map_by = MAP_BLOCK;
    o->min_nnodes = o->spares = o->max_restarts = o->max_no_progress = 0;
    o->node_rank = -1;
    o->timeout_ms = o->node_wait_ms = 0;
    o->progress_file = o->discovery = o->health_check = NULL;
    o->ui = o->metrics = o->events = NULL;
    o->report = false;
    o->elastic = ELASTIC_RESTART;
    o->grow = GROW_AT_RESTART;
    o->store_port = o->master_port = o->addr_port = 0;
    o->master_addr = NULL;
}

bool spawned_take(struct opts *o)
{
    OWNED char *keys = take_variable(SPAWNED_KEYS);
    char *number = take_variable(SPAWNED_NUMBER), *hosts = take_variable(SPAWNED_HOSTS);
    if (number)
        strv_push_nodup(&o->texts, number);
    if (hosts)
        strv_push_nodup(&o->texts, hosts);
    char *wdir = take_variable(SPAWNED_WDIR);
    if (wdir)
        strv_push_nodup(&o->texts, wdir);
    if (!number || !hosts)
        return false;
    if (wdir)
        o->wdir = wdir;
    o->spawn_number = number;
    leave_out(o);
    if (*hosts) {
        o->hosts = hosts;
        o->hosts_by = NULL;
    } else {
        o->alloc = "local";
        o->hostfile = o->hosts = NULL;
    }
    char *rest = keys;
    for (char *line = keys ? strtok_r(keys, "\n", &rest) : NULL; line;
         line = strtok_r(NULL, "\n", &rest))
        strv_push(&o->spawn_keys, line);
    o->oversubscribe = true;
    o->module = false;
    if (o->bind_to == BIND_AUTO) /* CPUs are shared with the ranks that run already */
        o->bind_to = BIND_NONE;
    o->input = INPUT_NONE;
    o->pty = PTY_OFF;
    if (o->tag_output == TAG_AUTO)
        o->tag_output = TAG_ON;
    if (o->output_filename) {
        char *name = xasprintf("%s.spawned%s", o->output_filename, o->spawn_number);
        strv_push_nodup(&o->texts, name);
        o->output_filename = name;
    }
    return true;
}
