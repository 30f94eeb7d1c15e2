/* launcher/plugins/horovod/horovod_agent.c - requests to Horovod's ranks on this node
 *
 * The launcher makes the request (notify.h) and knows the port of the rank. The reply
 * carries no data.
 */
#define LOG_SUBSYS "agent"
#include "launcher/agent/plugin.h"
#include "launcher/plugins/plugins.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"

#include <arpa/inet.h>
#include <event2/bufferevent.h>
#include <stdlib.h>

enum { REPLY_S = 20 }; /* as long as horovodrun waits */

struct horovod_node {
    struct agent *agent;     /* borrowed */
    struct bufferevent *bev; /* owned; NULL: no reply is waited for */
};

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
    end(h);
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

static int on_init(struct agent *a, void **state, struct ddp_err *err)
{
    struct horovod_node *h = xcalloc(1, sizeof *h);
    h->agent = a;
    *state = h;
    return 0;
}

static void on_fini(void *state)
{
    end(state);
    free(state);
}

static const struct agent_message messages[] = {{MSG_NOTIFY, handle_notify}, {0}};

const struct agent_plugin horovod_agent = {
    .name = "horovod",
    .init = on_init,
    .fini = on_fini,
    .messages = messages,
};
