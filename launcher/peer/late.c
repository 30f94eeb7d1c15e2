/* launcher/peer/late.c - see late.h */
#define LOG_SUBSYS "peers"
#include "launcher/peer/late.h"

#include "common/log.h"
#include "common/mem.h"
#include "launcher/peer/listener.h"

#include <stdlib.h>

struct late {
    struct late_peers is;             /* first: the job has a pointer to it */
    struct peer_listener listener;    /* owned */
    struct peer_key key;              /* owned */
    const struct late_events *events; /* borrowed */
    void *arg;
};

static void on_join(struct caller *c, void *arg)
{
    struct late *l = arg;
    const struct msg_join *who = &c->request;
    struct alloc_node as = {.name = who->host, .per_node = (int)who->per_node};
    struct ddp_err err;
    if (who->slots > 0)
        alloc_set_slots(&as, (int)who->slots, SLOTS_GIVEN, "%s", who->slots_from);
    long node = l->events->admit(&as, &err, l->arg);
    if (node < 0) {
        log_info("%s may not join: %s", who->host, err.text);
        caller_refuse(c, err.text);
    } else {
        int fd = caller_admit(c, (unsigned)node, (unsigned)l->listener.job->size);
        l->events->joined((unsigned)node, fd, &c->keys, l->arg);
    }
    free(as.slots_from);
    caller_drop(c);
}

static int late_listen(struct late_peers *p, struct loop *loop,
                       const struct late_events *events, void *arg, struct ddp_err *err)
{
    struct late *l = (struct late *)p;
    l->listener.loop = loop;
    l->events = events;
    l->arg = arg;
    return peer_listener_open(&l->listener, &l->key, err);
}

static void late_close(struct late_peers *p)
{
    struct late *l = (struct late *)p;
    peer_listener_close(&l->listener);
    peer_key_finish(&l->key);
    free(l);
}

struct late_peers *late_peers_create(const struct opts *opts, const struct ambient_job *o,
                                     struct peer_key *k)
{
    struct late *l = xcalloc(1, sizeof *l);
    *l = (struct late){
        .is = {late_listen, late_close},
        .listener = {.opts = opts, .job = o, .on_join = on_join, .arg = l},
        .key = *k,
    };
    *k = (struct peer_key){0};
    return &l->is;
}
