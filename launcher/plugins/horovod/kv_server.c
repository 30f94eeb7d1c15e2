/* launcher/plugins/horovod/kv_server.c - see kv_server.h
 *
 * The server (rendezvous/) gets one end of a socket pair for each connection of a rank.
 * Requests are handled at the end of the loop's iteration, because setting a key makes
 * the server execute the request that waits for it.
 */
#define LOG_SUBSYS "store"
#include "launcher/plugins/horovod/kv_server.h"

#include "common/err.h"
#include "common/log.h"
#include "common/mem.h"
#include "launcher/plugins/horovod/forward.h"
#include "rendezvous/server/server.h"

#include <stdlib.h>
#include <sys/socket.h>

struct request {
    char *key, *value; /* owned; value NULL: none */
};

struct kv_server {
    struct job *j;           /* borrowed */
    struct server *server;   /* owned */
    struct forward *forward; /* owned */
    unsigned scope;          /* of the keys of this attempt */
    void (*asked)(const char *key, const char *value, void *arg);
    void *arg;
    struct request *requests; /* owned: not handled yet */
    size_t n;
};

/* Empties the queue; with `handle`, after handling each request. */
static void end_requests(struct kv_server *k, bool handle)
{
    struct request *all = k->requests;
    size_t n = k->n;
    k->requests = NULL;
    k->n = 0;
    for (size_t i = 0; i < n; i++) {
        if (handle)
            k->asked(all[i].key, all[i].value, k->arg);
        free(all[i].key);
        free(all[i].value);
    }
    free(all);
}

static void handle_requests(void *arg)
{
    end_requests(arg, true);
}

static void on_asked(const char *key, size_t nkey, const char *value, size_t nvalue,
                     void *arg)
{
    struct kv_server *k = arg;
    k->requests = xrealloc(k->requests, k->n + 1, sizeof *k->requests);
    k->requests[k->n] =
        (struct request){xstrndup(key, nkey), value ? xstrndup(value, nvalue) : NULL};
    if (k->n++ == 0)
        loop_post(k->j->loop, handle_requests, k);
}

static void forget_requests(struct kv_server *k)
{
    loop_unpost(k->j->loop, k);
    end_requests(k, false);
}

static void on_notice(const char *line, void *arg)
{
    log_info("Horovod's key-value server: %s", line);
}

static void on_send(unsigned node, const struct msg_forward *m, void *arg)
{
    job_send(arg, node, MSG_FORWARD, m);
}

static void open_connection(struct kv_server *k, unsigned node, uint32_t id)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0) {
        struct ddp_err err;
        err_errno(&err, "a rank on %s does not reach Horovod's key-value server",
                  k->j->nodes[node].host->name);
        log_warn("%s", err.text);
        job_send(k->j, node, MSG(forward, id, FORWARD_CLOSE));
        return;
    }
    forward_add(k->forward, node, id, ends[0]);
    server_adopt(k->server, ends[1], k->scope);
}

void kv_server_receive(struct kv_server *k, unsigned node, const struct msg_forward *m)
{
    if (m->what == FORWARD_OPEN)
        open_connection(k, node, m->id);
    else
        forward_receive(k->forward, node, m);
}

void kv_server_forget(struct kv_server *k, unsigned node)
{
    forward_drop(k->forward, node);
}

void kv_server_renew(struct kv_server *k)
{
    forward_drop(k->forward, NODE_ALL);
    forget_requests(k);
    server_drop_scope(k->server, k->scope++);
}

void kv_server_end_world(struct kv_server *k)
{
    server_end_world(k->server, k->scope);
}

void kv_server_set(struct kv_server *k, const char *key, const char *value)
{
    struct ddp_err err;
    if (server_set(k->server, k->scope, key, value, &err) < 0)
        log_warn("a rank gets no place: %s", err.text);
}

struct kv_server *kv_server_create(struct job *j,
                                   void (*asked)(const char *key, const char *value,
                                                 void *arg),
                                   void *arg, struct ddp_err *err)
{
    struct kv_server *k = xcalloc(1, sizeof *k);
    *k = (struct kv_server){.j = j, .scope = 1, .asked = asked, .arg = arg};
    k->server = server_create(
        j->loop,
        &(struct server_options){
            .listen_fd = -1, .notice = on_notice, .asked = on_asked, .asked_arg = k},
        err);
    k->forward = forward_create(j->loop, on_send, j);
    if (k->server)
        return k;
    kv_server_destroy(k);
    return NULL;
}

void kv_server_destroy(struct kv_server *k)
{
    if (!k)
        return;
    forget_requests(k);
    forward_destroy(k->forward);
    server_destroy(k->server);
    free(k);
}
