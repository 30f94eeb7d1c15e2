/* launcher/plugins/horovod/horovod_agent.c - Horovod's elastic mode, on the nodes' side
 *
 * Ranks of this job reach the launcher's key-value server through a port of the loopback
 * interface (forward.h). The launcher makes the requests to a rank (notify.h) and knows
 * the rank's port; the reply carries no data.
 */
#define LOG_SUBSYS "agent"
#include "launcher/admission/admission.h"
#include "launcher/agent/plugin.h"
#include "launcher/plugins/plugins.h"

#include "common/err.h"
#include "common/listener.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sock.h"
#include "launcher/plugins/horovod/forward.h"

#include <arpa/inet.h>
#include <event2/bufferevent.h>
#include <stdlib.h>
#include <unistd.h>

enum { REPLY_S = 20 }; /* as long as horovodrun waits */

struct horovod_node {
    struct agent *agent;     /* borrowed */
    struct bufferevent *bev; /* owned; NULL: no reply is waited for */
    /* NULL: the job has no key-value server; all owned */
    struct forward *forward;
    struct listener *listener;
    int port; /* of the listener */
    uint32_t last_id;
};

/* --- connections of ranks to the key-value server ----------------------------------- */

static void on_send(unsigned node, const struct msg_forward *m, void *arg)
{
    agent_send(arg, MSG_FORWARD, m);
}

static void on_connect(int fd, const struct sockaddr *from, void *arg)
{
    struct horovod_node *h = arg;
    struct ddp_err err;
    if (!h->agent->job.store_open &&
        admission_accepted(agent_admission(h->agent), fd, from, NULL, &err) != 0) {
        listener_refused(h->listener, from, err.text);
        close(fd);
        return;
    }
    sock_set_nodelay(fd);
    agent_send(h->agent, MSG(forward, ++h->last_id, FORWARD_OPEN));
    forward_add(h->forward, h->agent->node, h->last_id, fd);
}

static int on_prepare(void *state, struct msg_job *job, struct ddp_err *err)
{
    struct horovod_node *h = state;
    if (!job->kv_server)
        return 0;
    if (h->forward) {
        forward_drop(h->forward, NODE_ALL); /* of the last attempt */
        return 0;
    }
    static const char what[] = "Horovod's key-value server";
    struct loop *loop = h->agent->loop;
    int fd = sock_listen("127.0.0.1", 0, &h->port, err);
    if (fd < 0)
        return err_prefix(err, "no port for %s", what);
    h->listener = listener_create(loop, fd, what, on_connect, h);
    h->forward = forward_create(loop, on_send, h->agent);
    return 0;
}

static void on_rank_facts(void *state, uint32_t local, struct rank_facts *facts)
{
    const struct horovod_node *h = state;
    facts->kv_port = h->port;
}

static int handle_forward(void *state, const struct frame *f, struct ddp_err *err)
{
    struct horovod_node *h = state;
    if (h->forward)
        forward_receive(h->forward, h->agent->node, f->m);
    return 0;
}

/* --- requests to ranks -------------------------------------------------------------- */

static void end(struct horovod_node *h)
{
    if (h->bev)
        bufferevent_free(h->bev);
    h->bev = NULL;
}

static void on_reply(struct bufferevent *bev, void *arg)
{
    log_debug("Horovod's rank 0 knows that hosts have changed");
    end(arg);
}

static void on_trouble(struct bufferevent *bev, short what, void *arg)
{
    if (what & BEV_EVENT_CONNECTED)
        return;
    log_warn(
        "Horovod's rank 0 could not be told that hosts have changed: its notification "
        "service %s",
        what & BEV_EVENT_TIMEOUT ? "does not answer" : "has closed the connection");
    end(arg);
}

static int handle_notify(void *state, const struct frame *f, struct ddp_err *err)
{
    struct horovod_node *h = state;
    const struct msg_notify *m = f->m;
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)m->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (h->bev)
        return 0; /* the launcher sends it again */
    h->bev = bufferevent_socket_new(loop_base(h->agent->loop), -1, BEV_OPT_CLOSE_ON_FREE);
    if (!h->bev)
        return 0;
    bufferevent_setcb(h->bev, on_reply, NULL, on_trouble, h);
    bufferevent_set_timeouts(h->bev, &(struct timeval){REPLY_S, 0},
                             &(struct timeval){REPLY_S, 0});
    bufferevent_write(h->bev, m->data, m->ndata);
    bufferevent_enable(h->bev, EV_READ | EV_WRITE);
    if (bufferevent_socket_connect(h->bev, (struct sockaddr *)&to, sizeof to) < 0)
        on_trouble(h->bev, BEV_EVENT_ERROR, h);
    return 0;
}

/* --- life --------------------------------------------------------------------------- */

static void on_fini(void *state)
{
    struct horovod_node *h = state;
    end(h);
    forward_destroy(h->forward);
    listener_destroy(h->listener);
}

static const struct agent_message messages[] = {
    {MSG_NOTIFY, handle_notify},
    {MSG_FORWARD, handle_forward},
    {0},
};

const struct agent_plugin horovod_agent = {
    .name = "horovod",
    .state_size = sizeof(struct horovod_node),
    .fini = on_fini,
    .prepare = on_prepare,
    .rank_facts = on_rank_facts,
    .messages = messages,
};
