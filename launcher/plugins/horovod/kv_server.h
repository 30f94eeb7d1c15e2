/* launcher/plugins/horovod/kv_server.h - Horovod's key-value server, in the launcher
 *
 * In Horovod's elastic mode ranks keep running when a host is lost, so the server must
 * not be on one of theirs. They reach it by the loopback interface of their hosts, over
 * the links (forward.h): the agents admit the connections. The protocol is that of
 * rendezvous/protocol/http.h.
 */
#ifndef LAUNCHER_PLUGINS_HOROVOD_KV_SERVER_H
#define LAUNCHER_PLUGINS_HOROVOD_KV_SERVER_H

#include "launcher/job/plugin.h"

struct kv_server;

/* `asked` is called in the loop for each request of server_options.asked, as a text. */
struct kv_server *kv_server_create(struct job *j,
                                   void (*asked)(const char *key, const char *value,
                                                 void *arg),
                                   void *arg, struct ddp_err *err);
void kv_server_destroy(struct kv_server *k); /* may be NULL */

void kv_server_receive(struct kv_server *k, unsigned node, const struct msg_forward *m);
/* The node is lost: its connections are closed. */
void kv_server_forget(struct kv_server *k, unsigned node);
/* Another attempt: drop all keys and connections of the last one. */
void kv_server_renew(struct kv_server *k);
/* A new world begins: drop the keys of the last one; then set those of the next. */
void kv_server_end_world(struct kv_server *k);
void kv_server_set(struct kv_server *k, const char *key, const char *value);

#endif
