/* launcher/job/hosts.c - hosts that come and go while the job runs
 *
 * Agents are then started after those of the other hosts: on hosts that are offered
 * later, and on those that were lost. All connect to the launcher. A host that has joined
 * is a spare, with an interpreter that does the imports, until the next attempt is
 * planned (spares.c). The allocation has room for hosts whose names are not known yet;
 * such an entry has an empty name and is `gone`.
 */
#define LOG_SUBSYS "job"
#include "launcher/job/hosts.h"

#include "common/duration.h"
#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/job/attempt.h"
#include "launcher/job/events.h"
#include "launcher/job/hooks.h"
#include "launcher/job/losses.h"
#include "launcher/job/nodes.h"
#include "launcher/transport/node_starter.h"
#include "launcher/transport/program.h"

#include <stdlib.h>
#include <string.h>

/* entries beside those of hosts in use: for hosts that cannot be reached */
enum { ROOM_LEAST = 8, ROOM_MOST = 4096 };

void job_make_room(struct job *j)
{
    size_t room = job_hosts_most(j) + ROOM_LEAST;
    room = j->alloc->nnodes + (room < ROOM_MOST ? room : ROOM_MOST);
    bool grows = j->alloc->changes && !j->opts->dry_run;
    while (grows && j->alloc->nnodes < room)
        alloc_add(j->alloc, "")->gone = true;
}

static bool is_free(const struct job *j, size_t node)
{
    const struct job_node *n = &j->nodes[node];
    return !n->host->name[0] || (n->unlisted && !n->via && n->place < 0);
}

/* For the transport: the host of this entry. */
static void describe(struct job *j, unsigned node)
{
    struct alloc_node *a = &j->alloc->nodes[node];
    struct host *h = &j->hosts.hosts[node];
    free(h->name);
    free(h->user);
    h->name = xstrdup(a->name);
    h->user = xstrdup(a->user);
    h->port = (uint32_t)a->port;
}

/* Another agent is about to join; its clock, too, may be another one. */
static void renew(struct job *j, unsigned node)
{
    struct job_node *n = &j->nodes[node];
    msg_hello_finish(&n->hello);
    free(n->trouble);
    *n = (struct job_node){.host = n->host,
                           .place = n->place,
                           .wanted = true,
                           .late = true,
                           .told = TOLD_NOTHING};
}

long job_host_add(struct job *j, const struct alloc_node *as)
{
    unsigned i = 0;
    while (i < j->alloc->nnodes && !is_free(j, i))
        i++;
    if (i == j->alloc->nnodes)
        return -1;
    struct alloc_node *a = &j->alloc->nodes[i];
    alloc_node_finish(a);
    alloc_node_copy(a, as);
    a->local = false; /* our own agent was forked at the start */
    a->gone = true;
    if (!j->peers)
        describe(j, i);
    j->nodes[i].unlisted = false;
    return i;
}

void job_host_forget(struct job *j, unsigned node)
{
    j->nodes[node].unlisted = true;
}

void job_host_start(struct job *j, unsigned node)
{
    renew(j, node);
    node_starter_again(j->starter, node);
}

/* --- others that have started ddprun themselves ------------------------------------- */

static long on_admit(const struct alloc_node *as, struct ddp_err *err, void *arg)
{
    struct job *j = arg;
    size_t n = COUNT_NODES(j, node, job_node_connected(node));
    if (j->state >= JOB_TERMINATING && !j->restart.pending)
        return err_set(err, "the job is ending");
    if (n >= job_hosts_most(j))
        return err_set(err, "the job has all hosts that it may have, %zu (--nnodes)", n);
    long at = job_host_add(j, as);
    return at < 0 ? err_set(err, "too many hosts were lost in short time") : at;
}

static void on_admitted(unsigned node, int fd, const struct link_keys *keys, void *arg)
{
    struct job *j = arg;
    renew(j, node);
    j->nodes[node].via = job_add_link(j, fd, keys, node);
    j->nodes[node].heard_ms = now_ms();
}

int job_await_peers(struct job *j, struct ddp_err *err)
{
    static const struct late_events events = {on_admit, on_admitted};
    struct late_peers *late = j->peers ? j->peers->late : NULL;
    return late ? late->listen(late, j->loop, &events, j, err) : 0;
}

/* --- all ---------------------------------------------------------------------------- */

void job_host_joined(struct job *j, unsigned node)
{
    struct job_node *n = &j->nodes[node];
    struct ddp_err err;
    int room;
    if (n->leaving) {
        job_dismiss_leaving(j);
        return;
    }
    n->unasked = n->ended = j->state >= JOB_TERMINATING;
    alloc_resolve(j->alloc, node, (int)n->hello.ngpus);
    bool fits = plan_cap(j->opts, n->host, &room, &err) == 0;
    bool later = fits && j->state == JOB_RUNNING && j->plan->nnodes < j->opts->nnodes &&
                 j->opts->grow == GROW_AT_RESTART && j->opts->elastic == ELASTIC_RESTART;
    job_say(j, "ddprun: %s has joined the job%s", n->host->name,
            later ? "; it gets ranks at the next restart (--grow)" : "");
    if (!fits)
        log_warn("no ranks on %s: %s", n->host->name, err.text);
    event_emit(j, "host_added", "{s:i, s:o, s:i}", "node", (int)node, "host",
               event_text(n->host->name), "slots", n->host->slots);
    if (j->state == JOB_RUNNING)
        job_welcome(j, node);
    job_check(j);
}

void job_host_offered(struct job *j, unsigned node, bool offered)
{
    struct job_node *n = &j->nodes[node];
    if (n->leaving == !offered)
        return;
    n->leaving = !offered;
    if (offered)
        return;
    bool later = n->place >= 0 && j->opts->elastic == ELASTIC_RESTART;
    job_say(j, "ddprun: %s is no longer listed%s", n->host->name,
            later ? "; the next attempt goes on without it" : "");
    event_emit(j, "host_removed", "{s:i, s:o}", "node", (int)node, "host",
               event_text(n->host->name));
    job_dismiss_leaving(j);
}

void job_node_hold(struct job *j, unsigned node)
{
    j->nodes[node].holds++;
}

void job_node_release(struct job *j, unsigned node)
{
    j->nodes[node].holds--;
    job_check(j);
}

void job_resize(struct job *j, const char *why)
{
    job_fail_text(j, CAUSE_RESIZE, EXIT_CANNOT_START, xstrdup(why));
}
