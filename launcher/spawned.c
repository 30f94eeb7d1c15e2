/* launcher/spawned.c - see spawned.h */
#include "launcher/spawned.h"

#include "common/mem.h"

#include <stdlib.h>

/* Moves a variable out of the environment to o->texts. NULL: it is not set. */
static const char *take(struct opts *o, const char *name)
{
    char *value = xstrdup(getenv(name));
    if (value)
        strv_push_nodup(&o->texts, value);
    unsetenv(name);
    return value;
}

static void take_lines(struct opts *o, const char *name, struct strv *lines)
{
    const char *at = take(o, name);
    while (at && *at) {
        size_t n = strcspn(at, "\n");
        strv_push_nodup(lines, xstrndup(at, n));
        at += n + (at[n] == '\n');
    }
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
    o->module = false;
    o->input = INPUT_NONE;
    o->pty = PTY_OFF;
}

static void use_hosts(struct opts *o, const char *hosts)
{
    o->oversubscribe = true;
    o->hosts = *hosts ? hosts : NULL;
    o->hosts_by = NULL;
    if (!*hosts) {
        o->alloc = "local";
        o->hostfile = NULL;
    }
    if (o->bind_to == BIND_AUTO) /* CPUs are shared with the ranks that run already */
        o->bind_to = BIND_NONE;
}

/* Output beside that of the other job. */
static void set_output_apart(struct opts *o)
{
    if (o->tag_output == TAG_AUTO)
        o->tag_output = TAG_ON;
    if (!o->output_filename)
        return;
    char *name = xasprintf("%s.spawned%s", o->output_filename, o->spawn_number);
    strv_push_nodup(&o->texts, name);
    o->output_filename = name;
}

bool spawned_take(struct opts *o)
{
    const char *hosts = take(o, SPAWNED_HOSTS), *wdir = take(o, SPAWNED_WDIR);
    o->spawn_number = take(o, SPAWNED_NUMBER);
    o->spawn_waits = take(o, SPAWNED_WAITS) != NULL;
    if (!o->spawn_number || !hosts)
        return false;
    take_lines(o, SPAWNED_KEYS, &o->spawn_keys);
    take_lines(o, SPAWNED_APPS, &o->apps);
    leave_out(o);
    use_hosts(o, hosts);
    set_output_apart(o);
    if (wdir)
        o->wdir = wdir;
    if (o->apps.n > 0) /* as programs_find() */
        o->preload = NULL;
    return true;
}
